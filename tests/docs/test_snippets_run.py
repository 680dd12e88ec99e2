"""Every snippet of README, tutorial and how-to guides, run against a real host with the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.testing.documented_pages import ROOT, PageRun, run_page, steps_of
from synapse_host.testing.fake_distributions import install_project
from synapse_host.testing.running_host import RunningHost, python_path

#: Needs the example installed, and so a host of its own.
GUIDE = "docs/how-to/write-a-backend.md"
PAGES = sorted(
    {
        str(page.relative_to(ROOT))
        for page in [ROOT / "README.md", *ROOT.glob("docs/how-to/*.md"), *ROOT.glob("plugins/*/README.md")]
    }
    - {GUIDE}
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_works_from_start_to_end(tutorial: PageRun) -> None:
    assert tutorial.status == 0, tutorial.output


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(page: str, tutorial: PageRun, documented_host: RunningHost, tmp_path: Path) -> None:
    if tutorial.status:
        pytest.fail("the tutorial failed, and with it the model the other pages use")
    outcome = run_page(page, documented_host, tmp_path)
    assert outcome.status == 0, outcome.output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_leads_to_a_backend_that_serves(tmp_path: Path) -> None:
    install_project(tmp_path / "site", ROOT / "examples" / "third_party_backend")
    environment = python_path(tmp_path / "site")
    with RunningHost(tmp_path / "home", environment) as host:
        (tmp_path / "reader").mkdir()
        outcome = run_page(GUIDE, host, tmp_path / "reader", environment)
    assert outcome.status == 0, outcome.output
    assert len(steps_of(GUIDE, tmp_path)) >= 8


def test_the_pages_have_snippets_to_run(tmp_path: Path) -> None:
    counts = {page: len(steps_of(page, tmp_path)) for page in [*PAGES, "docs/tutorial/first-embedding.md"]}
    assert counts["docs/tutorial/first-embedding.md"] >= 8
    assert counts["README.md"] >= 1
    assert sum(counts.values()) >= 18


def test_a_step_that_does_otherwise_than_it_says_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ true\n$ false  # exit status 1\n$ true # exit status 3\n```\n")
    outcome = run_page(str(page), RunningHost(tmp_path / "home"), tmp_path)
    assert outcome.status == 1
    assert "status 3 and did not:\n$ true # exit status 3" in outcome.output
