"""``synapse-host models ls``, ``catalog`` and ``show`` on a real host with the tiny catalog."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.testing.command_runs import run_synapse
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, RERANK, SHY, write_tiny_catalog
from synapse_host.testing.running_host import RunningHost


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    catalog = write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny")
    home = tmp_path_factory.mktemp("home")
    catalog.install(home, EMBED)
    with RunningHost(home, catalog.environment):
        yield home


def models(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_synapse("models", *arguments, home=home)


def shown(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    return json.loads(done.stdout)


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The lines of a table in a pipe, which are cells with a tab between them."""
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_the_catalog_has_a_row_for_each_model(home: Path) -> None:
    listed = {row[0]: row for row in rows(models(home, "catalog"))}
    assert {EMBED, OTHER, RERANK, SHY} <= set(listed)
    assert listed[EMBED][1:5] == ["embed", "yes", "reference", "installed"]
    assert listed[RERANK][1:5] == ["rerank", "yes", "reference, cpu", "not installed"]
    assert listed[SHY][3] == "nothing"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("reranker",), [RERANK, SHY]),
        (("--task", "embed"), [EMBED, OTHER]),
        (("--installed",), [EMBED]),
        (("--not-installed", "--runnable"), [OTHER, RERANK]),
        (("--not-runnable",), [SHY]),
        (("nothing of the kind",), []),
    ],
)
def test_filters(home: Path, options: tuple[str, ...], found: list[str]) -> None:
    assert [row["id"] for row in shown(models(home, "catalog", *options, "--json"))["models"]] == found


def test_one_model_is_shown_with_every_backend(home: Path) -> None:
    done = models(home, "show", EMBED)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert f"{EMBED}-metal" in done.stdout
    assert "installed" in done.stdout
    row = shown(models(home, "show", EMBED, "--json"))
    assert [backend["lane_id"] for backend in row["backends"]] == [f"{EMBED}-metal", f"{EMBED}-reference"]


def test_a_model_the_catalog_does_not_have(home: Path) -> None:
    done = models(home, "show", "absent")
    assert done.returncode == Exit.REFUSED
    assert done.stderr.startswith("error: unknown_model: the catalog has no model 'absent'")


def test_what_runs_nowhere_has_no_size(home: Path) -> None:
    listed = {row[0]: row for row in rows(models(home, "catalog"))}
    assert (listed[SHY][5], listed[EMBED][5][-3:]) == ("-", " MB")
    assert "not installed, and no backend here runs it\n" in models(home, "show", SHY).stdout


def test_what_can_serve_is_listed(home: Path) -> None:
    assert [row["model_id"] for row in shown(models(home, "ls", "--json"))["models"]] == [f"{EMBED}-reference"]
    assert f"{EMBED}-reference" in models(home, "ls").stdout
