from __future__ import annotations

from dataclasses import replace

import pytest

from synapse_host.backends.backend_row import BackendRow, read_outcome, row_of_report, rows_as_json
from synapse_host.backends.discovery import BackendEntry
from synapse_host.backends.probe_report import ChildOutcome, ProbeReport, encode_report
from synapse_host.hookspecs import BackendDescription, CapabilityEvidence

MACHINE = "linux-x86_64"
ENTRY = BackendEntry("mine", "mine_backend", "mine-dist", "2.0", "")
METAL = BackendEntry("metal", "metal_backend", "synapse-host-owned-metal", "0.1.0", "")
DESCRIPTION = BackendDescription(
    backend="mine",
    engine="my-engine",
    engine_version="1.0",
    build_flags={"precision": "f32"},
    tasks=("embed",),
    model_formats=("safetensors-package",),
    families=("bert",),
    dtypes=("bf16", "f32"),
    device_class="cpu",
    platforms=("linux",),
    extra="mine",
    owned=False,
    abort_capable=False,
)
OK = CapabilityEvidence("ok", {"cores": 1}, {"cores": 2})
REFUSED = CapabilityEvidence(
    "refused", {"api": 2}, {"api": 1}, "device_below_floor", "api_too_old", "update the driver"
)
RUNNABLE = ProbeReport("ok", DESCRIPTION, OK)


def outcome(report: ProbeReport, exit_code: int) -> ChildOutcome:
    return ChildOutcome("exited", exit_code, encode_report(report), "noise")


def row(child: ChildOutcome, entry: BackendEntry = ENTRY) -> BackendRow:
    return row_of_report(entry, read_outcome(entry, child), MACHINE, child.stderr_tail)


def test_an_ok_answer_is_a_runnable_row() -> None:
    found = row(outcome(RUNNABLE, 0))
    assert (found.runnable, found.reason, found.description, found.evidence) == (True, None, DESCRIPTION, OK)


def test_a_refusal_keeps_reason_detail_and_facts() -> None:
    found = row(outcome(ProbeReport("refused", DESCRIPTION, REFUSED), 2))
    assert (found.runnable, found.reason, found.reason_detail) == (False, "device_below_floor", "api_too_old")
    assert found.evidence == REFUSED
    assert found.message == "update the driver"


@pytest.mark.parametrize(
    ("child", "detail", "text"),
    [
        (ChildOutcome("timed_out", None, b"", ""), "probe_timeout", "within 10 s"),
        (ChildOutcome("overflowed", None, b"x" * 4096, ""), "probe_output_too_large", "4096 bytes"),
        (ChildOutcome("not_started", None, b"", "OSError: too many processes"), "probe_failed", "too many processes"),
        (ChildOutcome("exited", 7, b"", "a\nlast words\n"), "probe_failed", "exited with status 7 without an answer"),
        (ChildOutcome("exited", -11, b"", ""), "probe_failed", "was ended by signal 11"),
        (ChildOutcome("exited", 0, b"hello\n", ""), "probe_failed", "hello"),
        (outcome(RUNNABLE, 2), "probe_failed", "answered 'ok' and exited with status 2"),
        (
            outcome(ProbeReport("broken", reason_detail="import_failed", message="no module x"), 1),
            "import_failed",
            "no module x",
        ),
    ],
)
def test_whatever_is_no_answer_is_a_missing_worker_with_text_and_remedy(
    child: ChildOutcome, detail: str, text: str
) -> None:
    found = row(child)
    assert (found.runnable, found.reason, found.reason_detail) == (False, "worker_missing", detail)
    assert text in str(found.message)
    assert "uninstall mine-dist 2.0" in str(found.message)
    assert found.stderr_tail == child.stderr_tail


def test_the_last_words_of_a_crash_are_in_the_message() -> None:
    assert "last words" in str(row(ChildOutcome("exited", 7, b"", "a\nlast words\n")).message)


def test_a_broken_backend_of_another_platform_says_the_platform() -> None:
    found = row(ChildOutcome("exited", 7, b"", ""), METAL)
    assert (found.reason, found.reason_detail) == ("not_supported_on_platform", "probe_failed")


def test_a_backend_that_excludes_this_platform_does_not_run_although_its_probe_is_ok() -> None:
    elsewhere = replace(DESCRIPTION, platforms=("darwin",))
    found = row(outcome(ProbeReport("ok", elsewhere, OK), 0))
    assert (found.runnable, found.reason) == (False, "not_supported_on_platform")


def test_json_rows_have_every_key_of_the_contract() -> None:
    good, bad = rows_as_json([row(outcome(RUNNABLE, 0)), row(ChildOutcome("exited", 7, b"", ""))])
    keys = "backend engine engine_version build_flags owned tasks families dtypes device_class extra runnable reason"
    assert list(good) == list(bad) == [*keys.split(), "reason_detail", "message", "required", "observed"]
    assert (good["owned"], good["families"], bad["owned"], bad["families"]) == (False, ["bert"], None, [])
    assert (good["engine"], good["dtypes"], good["observed"]) == ("my-engine", ["bf16", "f32"], {"cores": 2})
    assert (bad["engine"], bad["dtypes"], bad["observed"]) == (None, [], {})


def test_json_rows_of_a_known_backend_name_its_engine_without_its_plugin() -> None:
    (metal,) = rows_as_json([row(ChildOutcome("exited", 7, b"", ""), METAL)])
    assert (metal["engine"], metal["device_class"], metal["extra"]) == ("owned-metal", "metal", "metal")
