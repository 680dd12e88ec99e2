"""No module that decides bits stands outside the kernel revision: what an engine reaches is covered, or named here."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import synapse_host
from synapse_host.owned_engine import kernel_revision as revision

ROOT = Path(synapse_host.__file__).parent
#: Rooms of the host whose modules an engine computes with.
ROOMS = ("families", "model_files", "ops", "owned_engine")
#: Modules of those rooms that an engine reaches and that decide no bits, each with the reason.
ASIDE = {
    "model_files.architectures": "reads config.json for whoever makes a package set",
    "model_files.compiled_package": "package sets, which have a revision of their own",
    "ops.dtypes": "the reference's rounding, of which an engine's checks of itself make their cases",
    "ops.null_handle": "shapes without numbers",
    "ops.null_ops": "shapes without numbers",
    "ops.reference_activations": "the interpreter of programs, which stands in where there is no Neural Engine",
    "ops.shape_rules": "refuses shapes that do not fit",
    "ops.weight_source": "refuses tensors that do not fit",
    "owned_engine.checkpoint_shapes": "shapes without numbers",
    "owned_engine.kernel_revision": "makes the revision",
    "owned_engine.row_refusal": "words of a refusal",
    "owned_engine.unread_tensors": "words of a note",
}
#: Rooms that are reached for an engine's check of its own operations alone.
CHECKS = ("owned_engine.self_check", "ops.attention_cases", "ops.case_bench", "ops.op_cases", "ops.row_cases")
ENGINES = ("synapse_owned_cpu", "synapse_owned_metal", "synapse_owned_cuda", "synapse_vulkan", "synapse_ane")


def imports_of(path: Path) -> Iterator[str]:
    """Modules a file imports when it runs, wherever in it."""
    tree = ast.parse(path.read_text("utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in for_types:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def modules_in_rooms(path: Path) -> set[str]:
    prefix = "synapse_host."
    named = {name.removeprefix(prefix) for name in imports_of(path) if name.startswith(prefix)}
    return {name for name in named if name.count(".") == 1 and name.startswith(ROOMS) and file_of(name).exists()}


def file_of(name: str) -> Path:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py")


def reached_from(package: ModuleType) -> set[str]:
    """Modules of the rooms that ``package`` reaches, its check of itself left out."""
    modules = [path for folder in package.__path__ for path in Path(folder).glob("*.py")]
    waiting = set().union(*(modules_in_rooms(path) for path in modules)) - set(CHECKS)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= modules_in_rooms(file_of(name)) - found - set(CHECKS)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_computes_with_is_under_its_revision(engine: str) -> None:
    covered = {path.resolve() for path in revision.shared_sources()}
    outside = {name for name in reached_from(importlib.import_module(engine)) if file_of(name) not in covered}
    assert {"owned_engine.engine", "families.bert"} <= reached_from(importlib.import_module(engine))
    assert outside - set(ASIDE) == set()


def test_no_exception_is_stale() -> None:
    reached = set().union(*(reached_from(importlib.import_module(engine)) for engine in ENGINES))
    covered = {path.resolve() for path in revision.shared_sources()}
    assert {name for name in ASIDE if name not in reached or file_of(name) in covered} == set()


def test_a_name_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"synapse_owned_cpu has no module gone, wrong; take the name off the list"):
        revision.package_sources(importlib.import_module("synapse_owned_cpu"), ("wrong", "evidence", "gone"))


def test_all_but_the_named_modules_count() -> None:
    package = importlib.import_module("synapse_owned_cpu")
    names = {path.stem for path in revision.package_sources(package)}
    assert names == {path.stem for folder in package.__path__ for path in Path(folder).glob("*.py")}
    assert {path.stem for path in revision.package_sources(package, ("evidence",))} == names - {"evidence"}
