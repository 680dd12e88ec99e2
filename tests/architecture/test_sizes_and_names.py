"""Files stay small, and a name says what is inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Past this a file is split (design section 4).
MOST_LINES = 400
#: Words that say nothing: whatever is in such a module has a name of its own.
FORBIDDEN = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
SHIPPED = ("synapse_host", "plugins", "examples")
EVERYTHING = (*SHIPPED, "tests", "benchmarks", "scripts")
_SKIPPED = {"__pycache__", ".venv", "build", "dist"}


def python_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """Python files below ``folders`` of ``root``."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if not _SKIPPED & set(path.parts):
                yield path


def too_long(root: Path) -> dict[str, int]:
    """Files over the limit with their lines."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(root, EVERYTHING)}
    return {str(path.relative_to(root)): lines for path, lines in lengths.items() if lines > MOST_LINES}


def badly_named(root: Path) -> list[str]:
    """Files and folders whose name has a forbidden word."""
    paths = {part for path in python_files(root, EVERYTHING) for part in (path, *path.relative_to(root).parents)}
    return sorted(str(path) for path in paths if FORBIDDEN & set(path.stem.lower().split("_")))


def filled_inits(root: Path) -> list[str]:
    """``__init__.py`` files with something in them."""
    inits = [path for path in python_files(root, EVERYTHING) if path.name == "__init__.py"]
    return [str(path.relative_to(root)) for path in inits if path.stat().st_size]


def packages_in_tests(root: Path) -> list[str]:
    """Test folders made into packages: tests are imported by path and cannot import each other."""
    inits = [*(root / "tests").rglob("__init__.py"), *(root / "plugins").glob("*/tests/**/__init__.py")]
    return [str(path.relative_to(root)) for path in inits]


def repeated_test_names(root: Path) -> list[str]:
    """Names that two test files share: a failure would not say which of them it is."""
    names = Counter(path.name for path in python_files(root, ("tests", "plugins")) if path.name.startswith("test_"))
    return sorted(name for name, count in names.items() if count > 1)


CHECKS = {
    "too long": too_long,
    "badly named": badly_named,
    "filled __init__": filled_inits,
    "package in tests": packages_in_tests,
    "repeated test name": repeated_test_names,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_keeps_its_rules(check: str) -> None:
    assert not CHECKS[check](ROOT)
    assert len(list(python_files(ROOT, SHIPPED))) > 50


@pytest.mark.parametrize(
    ("check", "files"),
    [
        ("too long", {"plugins/x/big.py": "x = 1\n" * (MOST_LINES + 1)}),
        ("badly named", {"synapse_host/lanes/lane_utils.py": ""}),
        ("badly named", {"synapse_host/common/lanes.py": ""}),
        ("badly named", {"tests/helpers.py": ""}),
        ("filled __init__", {"synapse_host/lanes/__init__.py": "from .lane import Lane\n"}),
        ("package in tests", {"plugins/x/tests/__init__.py": ""}),
        ("repeated test name", {"tests/pure/test_x.py": "", "plugins/x/tests/test_x.py": ""}),
    ],
)
def test_a_broken_rule_is_seen(check: str, files: dict[str, str], tmp_path: Path) -> None:
    for name, text in {**files, "synapse_host/good.py": "x = 1\n" * MOST_LINES, "synapse_host/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {name for name, rule in CHECKS.items() if rule(tmp_path)} == {check}
