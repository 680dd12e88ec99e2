from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.backends import evidence_cache
from synapse_host.backends.discovery import BackendEntry
from synapse_host.backends.evidence_cache import CacheKey, cache_file, cache_key, read_report, write_report
from synapse_host.backends.module_stamp import MISSING, module_stamp
from synapse_host.backends.probe_report import ProbeReport
from synapse_host.hookspecs import BackendDescription, CapabilityEvidence

ENTRY = BackendEntry("mine", "stamped.plugin", "mine-dist", "2.0", "digest")
KEY = CacheKey(1, "mine", "mine-dist", "2.0", "digest", "mine_backend", "stamp", "python", "machine", "shared", "{}")
DESCRIPTION = BackendDescription(
    backend="mine",
    engine="my-engine",
    engine_version="1.0",
    build_flags={"precision": "f32"},
    tasks=("embed",),
    model_formats=("safetensors-package",),
    families=("bert",),
    dtypes=("f32",),
    device_class="cpu",
    platforms=(),
    extra="",
    owned=False,
    abort_capable=False,
)
REPORT = ProbeReport(
    "refused", DESCRIPTION, CapabilityEvidence("refused", {"api": 2}, {"api": 1}, "device_below_floor", "old", "update")
)


def test_a_kept_report_reads_back_whole(tmp_path: Path) -> None:
    write_report(tmp_path, KEY, REPORT)
    assert read_report(tmp_path, KEY) == REPORT


def test_nothing_kept_reads_as_nothing(tmp_path: Path) -> None:
    assert read_report(tmp_path / "absent", KEY) is None


@pytest.mark.parametrize("field", [name for name in KEY.__slots__ if name != "layout"])
def test_a_report_of_another_key_is_not_believed(tmp_path: Path, field: str) -> None:
    write_report(tmp_path, KEY, REPORT)
    other = replace(KEY, **{field: "other"})
    if cache_file(tmp_path, other) != cache_file(tmp_path, KEY):
        cache_file(tmp_path, KEY).rename(cache_file(tmp_path, other))
    assert read_report(tmp_path, other) is None


def test_a_new_version_takes_the_file_of_the_old(tmp_path: Path) -> None:
    write_report(tmp_path, KEY, REPORT)
    write_report(tmp_path, replace(KEY, version="3.0"), REPORT)
    assert len(list(tmp_path.iterdir())) == 1
    assert read_report(tmp_path, KEY) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": {}}', "\x00" * 100])
def test_a_damaged_file_reads_as_nothing(tmp_path: Path, text: str) -> None:
    cache_file(tmp_path, KEY).write_text(text)
    assert read_report(tmp_path, KEY) is None


def test_a_report_that_was_tampered_with_is_not_believed(tmp_path: Path) -> None:
    write_report(tmp_path, KEY, REPORT)
    kept = json.loads(cache_file(tmp_path, KEY).read_text())
    kept["report"]["description"]["tasks"] = ["dance"]
    cache_file(tmp_path, KEY).write_text(json.dumps(kept))
    assert read_report(tmp_path, KEY) is None


def test_a_broken_report_is_not_kept(tmp_path: Path) -> None:
    write_report(tmp_path, KEY, ProbeReport("broken", reason_detail="import_failed", message="x"))
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_private_and_leaves_no_remains(tmp_path: Path) -> None:
    write_report(tmp_path / "capability", KEY, REPORT)
    (file,) = (tmp_path / "capability").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_write_that_fails_half_way_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(tmp_path, KEY, REPORT)

    def full_disk(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evidence_cache.os, "replace", full_disk)
    write_report(tmp_path, KEY, replace(REPORT, status="ok"))
    monkeypatch.undo()
    assert read_report(tmp_path, KEY) == REPORT
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write_report(tmp_path / "file" / "capability", KEY, REPORT)
    assert read_report(tmp_path / "file" / "capability", KEY) is None


def _package(folder: Path) -> Path:
    package = folder / "stamped"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('a parent package must not be imported')\n")
    (package / "plugin.py").write_text("raise SystemExit('a plugin must not be imported')\n")
    (package / "evidence.py").write_text("")
    return package


@pytest.mark.parametrize("changed", ["plugin.py", "evidence.py"])
def test_the_stamp_follows_the_module_and_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    package = _package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = cache_key(ENTRY)
    os.utime(package / changed, ns=(1, 1))
    after = cache_key(ENTRY)
    assert before.module_stamp != MISSING
    assert before.module_stamp != after.module_stamp
    assert replace(after, module_stamp=before.module_stamp) == before


def test_the_key_follows_the_code_that_plugins_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(evidence_cache, "SHARED_CODE", ("stamped",))
    before = cache_key(ENTRY).shared_code
    (package / "family.py").write_text("")
    assert cache_key(ENTRY).shared_code not in (before, MISSING)


def test_all_shared_code_is_found() -> None:
    assert MISSING not in [module_stamp(name) for name in evidence_cache.SHARED_CODE]


def test_the_stamp_of_a_single_module_ignores_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lone_backend.py").write_text("raise SystemExit('a plugin must not be imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = module_stamp("lone_backend")
    (tmp_path / "neighbour.py").write_text("")
    assert module_stamp("lone_backend") == before
    os.utime(tmp_path / "lone_backend.py", ns=(1, 1))
    assert module_stamp("lone_backend") not in (before, MISSING)


def test_the_stamp_of_a_module_that_is_nowhere_says_so() -> None:
    assert module_stamp("no.such.plugin") == MISSING
