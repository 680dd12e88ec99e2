from __future__ import annotations

import sys
from pathlib import Path

import pytest

from synapse_host.backends.discovery import list_backends
from synapse_host.testing.fake_distributions import backend_source, install_backend, install_distribution

GROUP = "[synapse_host.backends]\n"


def by_name(folder: Path) -> dict[str, str | None]:
    return {entry.name: entry.fault.reason_detail if entry.fault else None for entry in list_backends([str(folder)])}


def test_an_installed_backend_is_listed_with_its_distribution(tmp_path: Path) -> None:
    install_backend(tmp_path, "good", backend_source("good"))
    (entry,) = list_backends([str(tmp_path)])
    assert (entry.name, entry.module, entry.distribution, entry.version) == ("good", "good_backend", "fake-good", "1.0")
    assert len(entry.record_digest) == 64
    assert entry.fault is None


def test_listing_imports_no_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_backend(tmp_path, "deadly", "import os\nos._exit(99)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "deadly" in {entry.name for entry in list_backends()}
    assert "deadly_backend" not in sys.modules


def test_the_host_lists_its_own_reference_backend() -> None:
    assert "reference" in {entry.name for entry in list_backends()}


def test_the_record_digest_follows_the_record(tmp_path: Path) -> None:
    install_backend(tmp_path, "good", backend_source("good"))
    (before,) = list_backends([str(tmp_path)])
    record = tmp_path / "fake_good-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "another.py,,\n")
    (after,) = list_backends([str(tmp_path)])
    assert before.record_digest != after.record_digest


def test_a_distribution_without_record_is_still_listed(tmp_path: Path) -> None:
    install_backend(tmp_path, "good", backend_source("good"))
    (tmp_path / "fake_good-1.0.dist-info" / "RECORD").unlink()
    (entry,) = list_backends([str(tmp_path)])
    assert (entry.record_digest, entry.fault) == ("", None)


@pytest.mark.parametrize(
    "entry_points",
    [b"[synapse_host.backends]\nthis line has no equals sign\n", b"[synapse_host.backends]\n\xff\xfe = x\n"],
    ids=["no equals sign", "not UTF-8"],
)
def test_unreadable_metadata_hides_no_other_backend(tmp_path: Path, entry_points: bytes) -> None:
    install_distribution(tmp_path, "torn", entry_points=entry_points, files={})
    install_backend(tmp_path, "good", backend_source("good"))
    assert by_name(tmp_path) == {"good": None, "torn": "metadata_unreadable"}


def test_a_distribution_without_metadata_is_listed_by_its_folder(tmp_path: Path) -> None:
    install_backend(tmp_path, "good", backend_source("good"))
    (tmp_path / "fake_good-1.0.dist-info" / "METADATA").unlink()
    (entry,) = list_backends([str(tmp_path)])
    assert (entry.distribution, entry.version) == ("fake_good-1.0.dist-info", "unknown")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("Good = mine", "'Good'"),
        ("../up = mine", "'../up'"),
        ("--help = mine", "'--help'"),
        ("mine = mine:Plugin", "'mine:Plugin'"),
        ("mine = not a module", "'not a module'"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(tmp_path: Path, line: str, wanted: str) -> None:
    install_distribution(tmp_path, "odd", entry_points=f"{GROUP}{line}\n", files={})
    (entry,) = list_backends([str(tmp_path)])
    assert entry.fault is not None
    assert entry.fault.reason_detail == "entry_point_invalid"
    assert wanted in entry.fault.message
    assert "'odd'" in entry.fault.message


def test_a_name_that_two_distributions_claim_belongs_to_neither(tmp_path: Path) -> None:
    install_backend(tmp_path, "good", backend_source("good"), distribution="first")
    install_backend(tmp_path, "good", backend_source("good"), distribution="second")
    (entry,) = list_backends([str(tmp_path)])
    assert entry.fault is not None
    assert entry.fault.reason_detail == "duplicate_backend"
    assert "first 1.0 and second 1.0" in entry.fault.message


def test_one_distribution_found_twice_on_the_path_is_one(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        install_backend(tmp_path / folder, "good", backend_source("good"))
    (entry,) = list_backends([str(tmp_path / "a"), str(tmp_path / "b")])
    assert entry.fault is None


def test_entry_points_of_other_groups_are_no_backends(tmp_path: Path) -> None:
    install_distribution(tmp_path, "tool", entry_points="[console_scripts]\ntool = tool:main\n", files={})
    assert list_backends([str(tmp_path)]) == []
