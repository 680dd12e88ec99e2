"""The import directions of the house, and that each contract would notice a step over its line."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = [contract["id"] for contract in SETTINGS["contracts"]]

#: Rooms that are not the host process: the numbers, the child, what tests and plugins share.
NOT_HOST = {"families", "hookspecs", "ops", "owned_engine", "testing", "worker"}
#: What a plugin may import of the host package (design section 4).
OPEN_TO_PLUGINS = {"errors", "families", "hookspecs", "model_files", "ops", "owned_engine", "testing"}

#: contract -> (a file to add, what it imports): one step over each line.
TRESPASSES = {
    "host": ("synapse_host/operations/trespass.py", "import synapse_host.families.bert"),
    "worker": ("synapse_host/worker/trespass.py", "def late():\n    import pydantic\n"),
    "families": ("synapse_host/families/trespass.py", "import synapse_host.owned_engine"),
    "engine": ("synapse_host/ops/trespass.py", "from synapse_host.server import session"),
    "plugins": ("synapse_owned_cpu/trespass.py", "from synapse_host.worker_protocol import messages"),
    "walk": ("synapse_host/lanes/trespass.py", "from synapse_host.operations import registry"),
    "loaded_plugin": ("synapse_host/lanes/trespass.py", "from synapse_host.backends import loaded_plugin"),
}


def lint(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the packages below ``root``; its working directory comes first on the path."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo", *options, "pyproject.toml"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="session")
def copied_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources in a folder of their own, to plant trespasses in."""
    root = tmp_path_factory.mktemp("house")
    skipped = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "synapse_host", root / "synapse_host", ignore=skipped)
    plugin = "synapse_owned_cpu"
    shutil.copytree(ROOT / "plugins" / "owned_cpu" / plugin, root / plugin, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_every_contract_is_kept() -> None:
    outcome = lint(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in outcome.stdout


def test_every_contract_has_its_trespass() -> None:
    assert sorted(CONTRACTS) == sorted(TRESPASSES)


@pytest.mark.parametrize("contract", TRESPASSES)
def test_a_step_over_the_line_breaks_its_contract(contract: str, copied_house: Path) -> None:
    path, code = TRESPASSES[contract]
    planted = copied_house / path
    planted.write_text(f"{code}\n", encoding="utf-8")
    try:
        outcome = lint(copied_house, "--contract", contract)
    finally:
        planted.unlink()
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "0 kept, 1 broken" in outcome.stdout
    assert "trespass" in outcome.stdout


def test_no_room_of_the_host_escapes_the_contract() -> None:
    (contract,) = [contract for contract in SETTINGS["contracts"] if contract["id"] == "host"]
    rooms = {
        path.stem
        for path in (ROOT / "synapse_host").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    listed = {module.removeprefix("synapse_host.") for module in contract["source_modules"]}
    assert rooms - NOT_HOST == listed, "add the room to the host contract of pyproject.toml, or take it out"


def plugin_modules() -> Iterator[Path]:
    """Every module a plugin or an example ships; installed or not, so import-linter does not see them all."""
    for folder in (ROOT / "plugins", ROOT / "examples" / "third_party_backend"):
        for path in folder.rglob("*.py"):
            if not {"tests", ".venv", "build"} & set(path.relative_to(folder).parts):
                yield path


def imported_rooms(source: str) -> set[str]:
    """Names directly below ``synapse_host`` that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {match[1] for name in names if (match := re.match(r"synapse_host\.(\w+)", name))}


def test_plugins_and_examples_import_only_the_rooms_that_are_open_to_them() -> None:
    modules = list(plugin_modules())
    trespasses = {
        str(path.relative_to(ROOT)): rooms
        for path in modules
        if (rooms := imported_rooms(path.read_text(encoding="utf-8")) - OPEN_TO_PLUGINS)
    }
    assert trespasses == {}
    assert {"make_table.py", "plugin.py"} <= {path.name for path in modules}


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import synapse_host.server.session", {"server"}),
        ("from synapse_host import lanes, ops", {"lanes", "ops"}),
        ("def late():\n    from synapse_host.store.database import Store", {"store"}),
        ("import numpy", set()),
    ],
)
def test_an_import_is_seen_in_every_spelling(source: str, rooms: set[str]) -> None:
    assert imported_rooms(source) == rooms
