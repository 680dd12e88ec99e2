"""Every relative link of the documentation leads to a file, and its anchor to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text("utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - reached == {index}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[no](none.md) [yes](page.md#here) [no](#there)\n```\n[code](x)\n```\n")
    assert broken(page) == ["none.md", "#there"]
