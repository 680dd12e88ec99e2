"""What a plugin says its evidence rests on: the stamp of it, and kept evidence that is not believed once it changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.backends.description_check import DescriptionFault, check_evidence
from synapse_host.backends.evidence_cache import CacheKey, read_report, write_report
from synapse_host.backends.premises import premises_stamp
from synapse_host.backends.probe_report import ProbeReport, decode_report, encode_report
from synapse_host.hookspecs import CapabilityEvidence, Premises
from synapse_host.testing.fake_distributions import backend_source

NAMES = ("DRIVER", "VK_*")
ENVIRONMENT = {"DRIVER": "one", "VK_A": "1", "HOME": "/root"}
KEY = CacheKey(1, "good", "good-dist", "2.0", "digest", "good_backend", "stamp", "python", "machine", "shared", "{}")


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    folder = tmp_path / "drivers"
    folder.mkdir()
    (folder / "card.json").write_text("{}")
    (tmp_path / "library.so").write_text("driver 1")
    (folder / "linked.so").symlink_to(tmp_path / "library.so")
    return folder


def premises_of(drivers: Path) -> Premises:
    return Premises(NAMES, (str(drivers), str(drivers.parent / "alone.json")))


@pytest.mark.parametrize(
    "environ",
    [
        {**ENVIRONMENT, "DRIVER": "two"},
        {**ENVIRONMENT, "DRIVER": ""},
        {"VK_A": "1", "HOME": "/root"},
        {**ENVIRONMENT, "VK_A": "2"},
        {**ENVIRONMENT, "VK_B": "1"},
        {"DRIVER": "one", "VK_B": "1", "HOME": "/root"},
    ],
)
def test_a_named_variable_that_changes_comes_or_goes_changes_the_stamp(
    environ: Mapping[str, str], drivers: Path
) -> None:
    premises = premises_of(drivers)
    assert premises_stamp(premises, environ) != premises_stamp(premises, ENVIRONMENT)


def test_other_variables_change_nothing(drivers: Path) -> None:
    premises = premises_of(drivers)
    other = {**ENVIRONMENT, "HOME": "/home/other", "DRIVERS": "x", "MVK_A": "1"}
    assert premises_stamp(premises, other) == premises_stamp(premises, ENVIRONMENT)


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "another file in the folder": lambda drivers: (drivers / "second.json").write_text("{}"),
    "a file of the folder is gone": lambda drivers: (drivers / "card.json").unlink(),
    "a file of the folder is another": lambda drivers: os.utime(drivers / "card.json", ns=(1, 1)),
    "what a link leads to is another": lambda drivers: (drivers.parent / "library.so").write_text("driver 2.0"),
    "the folder is gone": lambda drivers: drivers.rename(drivers.parent / "elsewhere"),
    "a file that was not there": lambda drivers: (drivers.parent / "alone.json").write_text("{}"),
    "an empty folder in the place of no file": lambda drivers: (drivers.parent / "alone.json").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_named_file_that_changes_comes_or_goes_changes_the_stamp(change: str, drivers: Path) -> None:
    premises = premises_of(drivers)
    before = premises_stamp(premises, ENVIRONMENT)
    assert premises_stamp(premises, ENVIRONMENT) == before
    CHANGES[change](drivers)
    assert premises_stamp(premises, ENVIRONMENT) != before


def report_of(premises: Premises) -> ProbeReport:
    space: dict[str, object] = {}
    exec(backend_source("good"), space)
    describe, probe = space["synapse_describe"], space["synapse_probe_capability"]
    assert callable(describe)
    assert callable(probe)
    return ProbeReport("ok", describe(), replace(probe(), premises=premises))


@pytest.mark.parametrize("change", ["variable", "file"])
def test_kept_evidence_is_not_believed_once_its_premises_changed(
    change: str, drivers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER", "one")
    report = report_of(premises_of(drivers))
    write_report(tmp_path, KEY, report)
    assert read_report(tmp_path, KEY) == report
    if change == "variable":
        monkeypatch.setenv("DRIVER", "two")
    else:
        (drivers / "card.json").unlink()
    assert read_report(tmp_path, KEY) is None


def test_no_value_of_the_environment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER", "a-secret-of-mine")
    write_report(tmp_path, KEY, report_of(Premises(("DRIVER",))))
    assert all(b"a-secret-of-mine" not in file.read_bytes() for file in tmp_path.iterdir())


def test_premises_travel_with_the_evidence() -> None:
    report = report_of(Premises(("DRIVER", "VK_*"), ("/etc/vulkan/icd.d",)))
    assert decode_report(encode_report(report), "good") == report


@pytest.mark.parametrize("premises", [None, Premises(("",)), Premises("HOME"), Premises((), ("icd.d",))])  # type: ignore[arg-type]
def test_premises_that_are_none_are_a_fault_of_the_plugin(premises: Premises) -> None:
    evidence = CapabilityEvidence("ok", {}, {}, premises=premises)
    with pytest.raises(DescriptionFault, match=r"CapabilityEvidence\.premises is .*absolute paths"):
        check_evidence(evidence, "good")
