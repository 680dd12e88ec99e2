from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from synapse_host.backends.probe_report import (
    MAX_REPORT_BYTES,
    ProbeReport,
    ReportFault,
    decode_report,
    encode_report,
    report_to_json,
)
from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, PackedSupport

DESCRIPTION = BackendDescription(
    backend="mine",
    engine="my-engine",
    engine_version="1.0",
    build_flags=MappingProxyType({"precision": "f32"}),
    tasks=("embed", "rerank"),
    model_formats=("safetensors-package",),
    families=("bert",),
    dtypes=("bf16", "f32"),
    device_class="vulkan",
    platforms=("linux",),
    extra="vulkan",
    owned=True,
    abort_capable=False,
    kernel_revision="abc",
    manifest_digest="def",
    recommended_batch=BatchPolicy(8, 3072),
    packed=PackedSupport((256, 384), 8),
)
EVIDENCE = CapabilityEvidence(
    "refused",
    {"api": [1, 3]},
    {"api": [1, 1], "device": "llvmpipe"},
    "device_below_floor",
    "software_device",
    "buy one",
)
REPORT = ProbeReport("refused", DESCRIPTION, EVIDENCE)


def test_a_report_survives_the_line() -> None:
    back = decode_report(encode_report(REPORT), "mine")
    assert back == replace(REPORT, description=replace(DESCRIPTION, build_flags={"precision": "f32"}))


def test_a_broken_report_survives_the_line() -> None:
    broken = ProbeReport("broken", reason_detail="import_failed", message="no module named x")
    assert decode_report(encode_report(broken), "mine") == broken


@pytest.mark.parametrize("filler", ["x", "\x00", "é", "\N{GRINNING FACE}", "\ud800"])
def test_a_message_of_any_length_and_script_fits_the_line(filler: str) -> None:
    line = encode_report(ProbeReport("broken", reason_detail="import_failed", message="start " + filler * 100_000))
    assert len(line) <= MAX_REPORT_BYTES
    message = decode_report(line, "mine").message
    assert message is not None
    assert message.startswith("start ")
    assert message.endswith("…")


def test_facts_that_do_not_fit_are_refused_with_both_numbers() -> None:
    much = replace(EVIDENCE, observed={"device": "x" * 5000})
    with pytest.raises(ReportFault, match=r"take \d+ bytes and the limit is 4096"):
        encode_report(replace(REPORT, evidence=much))


@pytest.mark.parametrize("value", [object(), float("nan"), b"bytes", {1, 2}])
def test_a_fact_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ReportFault, match="no JSON form"):
        encode_report(replace(REPORT, evidence=replace(EVIDENCE, observed={"fact": value})))


def _wire(**changes: Any) -> bytes:
    return json.dumps({**report_to_json(REPORT), **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b'"refused"\n',
        b"loading...\n",
        _wire().rstrip(),
        _wire() + b"{}\n",
        b"[" * 4000 + b"\n",
        _wire(status="ok"),
        _wire(description=None),
        _wire(description=[1]),
        _wire(description="ab"),
        _wire(description={**report_to_json(REPORT)["description"], "speed": 3}),
        _wire(description={**report_to_json(REPORT)["description"], "tasks": ["dance"]}),
        _wire(description={**report_to_json(REPORT)["description"], "recommended_batch": 5}),
        _wire(evidence={**report_to_json(REPORT)["evidence"], "reason": "busy"}),
        _wire(status="broken", reason_detail=3, message="m"),
    ],
)
def test_a_line_that_is_not_as_agreed_is_refused(line: bytes) -> None:
    with pytest.raises(ReportFault, match="backend 'mine'"):
        decode_report(line, "mine")


def test_a_report_of_another_backend_is_refused() -> None:
    with pytest.raises(ReportFault, match="'yours'"):
        decode_report(encode_report(REPORT), "yours")
