from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.backends.backend_row import row_of_absent
from synapse_host.backends.known import ALIASES, KNOWN_BACKENDS, current_platform, supports_platform

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("platforms", "machine", "expected"),
    [
        ((), "linux-x86_64", True),
        (("linux",), "linux-x86_64", True),
        (("linux",), "darwin-arm64", False),
        (("darwin-arm64",), "darwin-arm64", True),
        (("darwin-arm64",), "darwin-x86_64", False),
        (("darwin-arm64",), "linux-arm64", False),
        (("linux-aarch64",), "linux-arm64", True),
        (("linux-amd64",), "linux-x86_64", True),
        (("macos", "windows"), "win32-x86_64", True),
    ],
)
def test_a_platform_covers_a_machine(platforms: tuple[str, ...], machine: str, expected: bool) -> None:
    assert supports_platform(platforms, machine) is expected


def test_this_machine_is_covered_by_its_own_system_word() -> None:
    assert supports_platform((current_platform().partition("-")[0],), current_platform())


def test_every_extra_of_the_table_is_an_extra_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for known in KNOWN_BACKENDS.values():
        (requirement,) = project["optional-dependencies"][known.extra]
        assert requirement.split()[0] == known.distribution


def test_an_absent_backend_says_how_to_install_it() -> None:
    row = row_of_absent(KNOWN_BACKENDS["cpu"], "linux-x86_64")
    assert (row.runnable, row.reason, row.reason_detail) == (False, "worker_missing", "not_installed")
    assert "pip install synapse-host[cpu]" in str(row.message)


def test_a_planned_backend_is_not_offered_for_installing() -> None:
    row = row_of_absent(replace(KNOWN_BACKENDS["ane"], built=False), "darwin-arm64")
    assert (row.runnable, row.reason, row.reason_detail) == (False, "worker_missing", "backend_not_built")
    assert "planned" in str(row.message)
    assert "pip install" not in str(row.message)


def test_an_absent_backend_of_another_platform_says_so_first() -> None:
    row = row_of_absent(KNOWN_BACKENDS["metal"], "linux-x86_64")
    assert row.reason == "not_supported_on_platform"
    assert "darwin-arm64" in str(row.message)
    assert "linux-x86_64" in str(row.message)
    assert "pip install" not in str(row.message)


def test_every_other_name_means_a_backend_there_is_or_was() -> None:
    assert set(ALIASES.values()) - set(KNOWN_BACKENDS) == {"ort"}
    assert not set(ALIASES) & {name for known in KNOWN_BACKENDS.values() for name in (known.backend, known.engine)}
