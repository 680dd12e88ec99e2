"""The hook reference against ``hookspecs``, and the snippets of the guide against the files they are taken from."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from synapse_host import hookspecs
from synapse_host.backends.hook_check import hook_arguments
from synapse_host.worker_protocol.messages import ERR_CODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "write-a-backend.md").read_text(encoding="utf-8")
LABELS = ("When", "Where", "Arguments", "Returns", "Errors")
VALUES = [name for name, value in vars(hookspecs).items() if dataclasses.is_dataclass(value)]


def sections() -> dict[str, str]:
    """Heading of the third level -> its text."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented_hooks() -> dict[str, tuple[str, ...]]:
    found = {}
    for heading in sections():
        if match := re.fullmatch(r"(synapse_\w+)\((.*)\)", heading):
            found[match[1]] = tuple(part.strip() for part in match[2].split(",") if part.strip())
    return found


def hook_section(hook: str) -> str:
    return sections()[f"{hook}({', '.join(hook_arguments()[hook])})"]


def test_every_hook_is_documented_with_its_arguments_in_order() -> None:
    assert documented_hooks() == hook_arguments()


@pytest.mark.parametrize("hook", hook_arguments())
def test_a_hook_says_when_where_arguments_returns_and_errors(hook: str) -> None:
    labels = re.findall(r"^\*\*(\w+):\*\* \S", hook_section(hook), flags=re.MULTILINE)
    assert tuple(labels) == LABELS


@pytest.mark.parametrize("hook", hook_arguments())
def test_every_argument_of_a_hook_is_explained(hook: str) -> None:
    explained = hook_section(hook).split("**Arguments:**")[1].split("**Returns:**")[0]
    assert [name for name in hook_arguments()[hook] if f"`{name}`" not in explained] == []


def test_hooks_stand_under_the_process_they_run_in() -> None:
    child, worker = PAGE.split("\n## In the worker\n")
    described = {"synapse_describe", "synapse_probe_capability"}
    assert {hook for hook in hook_arguments() if f"### {hook}(" in child} == described
    assert {hook for hook in hook_arguments() if f"### {hook}(" in worker} == set(hook_arguments()) - described


@pytest.mark.parametrize("value", VALUES)
def test_every_field_of_a_value_is_documented(value: str) -> None:
    fields = {field.name for field in dataclasses.fields(getattr(hookspecs, value))}
    rows = re.findall(r"^\| (`.+?) \|", sections()[value], flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == fields


def test_the_reasons_of_a_refusal_are_the_four_of_the_contract() -> None:
    row = next(line for line in sections()["CapabilityEvidence"].splitlines() if line.startswith("| `reason` |"))
    assert set(re.findall(r"`(\w+)`", row)) - {"reason"} == set(get_args(hookspecs.RefusalReason))


def test_every_code_of_a_refusal_is_an_err_code() -> None:
    row = next(line for line in sections()["PluginError"].splitlines() if line.startswith("| `code` |"))
    assert set(re.findall(r"`(\w+)`", row)) - {"code"} <= set(ERR_CODES)


def _details_in_code() -> set[str]:
    """Every fine word that ``backends`` and the probe give: the first argument of the calls that carry one."""
    carriers = {"PluginRefused": 0, "EntryFault": 0, "_broken": 0}
    files = [*(ROOT / "synapse_host" / "backends").glob("*.py"), ROOT / "synapse_host" / "worker" / "probe.py"]
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in carriers
                and node.args
            ):
                found |= _word(node.args[0])
            if isinstance(node, ast.keyword) and node.arg == "reason_detail":
                found |= _word(node.value)
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                found |= _word(node.value.elts[0])
    return {word for word in found if re.fullmatch(r"[a-z]+_[a-z_]+", word)} | {"not_installed", "backend_not_built"}


def _word(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_every_reason_detail_of_the_host_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", sections()["Why a backend does not run"], flags=re.MULTILINE)
    assert set(rows) == _details_in_code()


def _snippets() -> list[tuple[str, str]]:
    return re.findall(r"<!-- from (\S+) -->\n```\w+\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_the_guide_takes_its_code_from_the_example() -> None:
    assert len(_snippets()) == GUIDE.count("```python") + GUIDE.count("```toml") > 0


@pytest.mark.parametrize(("path", "text"), _snippets())
def test_a_snippet_of_the_guide_is_in_the_file_it_names(path: str, text: str) -> None:
    assert text in (ROOT / path).read_text(encoding="utf-8")


def test_the_guide_names_the_example_as_it_is_installed() -> None:
    project = tomllib.loads((ROOT / "examples" / "third_party_backend" / "pyproject.toml").read_text())["project"]
    (name,) = project["entry-points"]["synapse_host.backends"]
    assert f"python -m synapse_host.worker.probe {name}" in GUIDE


@pytest.mark.parametrize("page", ["docs/reference/hooks.md", "docs/how-to/write-a-backend.md"])
def test_links_of_the_pages_lead_to_files(page: str) -> None:
    file = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8"))
    assert [target for target in targets if not (file.parent / target).exists()] == []
