"""What the describe-and-probe child tells the host: one JSON line. Both sides read and write it here.

Stdlib only. ``broken`` means the plugin could not be loaded, described or probed; ``reason_detail`` and ``message``
then say why. The same object is what the evidence cache keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from synapse_host.backends.description_check import check_description, check_evidence
from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, PackedSupport, Premises
from synapse_host.values import value_object

#: Bytes of the line, its newline included (original facts 1.8: standard output is capped at 4096 bytes).
MAX_REPORT_BYTES = 4096
#: A message in the line takes at most this many encoded bytes, so that a long traceback cannot push out the rest.
_MAX_MESSAGE_BYTES = 2000
#: Seconds a plugin has to describe and probe (original facts 1.8).
PROBE_TIMEOUT_S = 10.0
Status = Literal["ok", "refused", "broken"]
Ending = Literal["exited", "timed_out", "overflowed", "not_started"]
#: Exit status of the child beside each status.
EXIT_CODES: Mapping[Status, int] = {"ok": 0, "refused": 2, "broken": 1}


class ReportFault(ValueError):
    """Bytes that are no report, or a report too long to send; the message says which."""


@value_object
class ProbeReport:
    """``ok`` and ``refused`` carry description and evidence; ``broken`` carries reason_detail and message."""

    status: Status
    description: BackendDescription | None = None
    evidence: CapabilityEvidence | None = None
    reason_detail: str | None = None
    message: str | None = None


@value_object
class ChildOutcome:
    """How the child ended. ``exit_code`` is negative for a signal; ``answer`` is its standard output."""

    ending: Ending
    exit_code: int | None
    answer: bytes
    stderr_tail: str


def report_to_json(report: ProbeReport) -> dict[str, Any]:
    """The report in JSON's own types."""
    return {
        "status": report.status,
        "description": _plain_fields(report.description),
        "evidence": _plain_fields(report.evidence),
        "reason_detail": report.reason_detail,
        "message": None if report.message is None else _clip(report.message),
    }


def report_from_json(value: Any, backend: str) -> ProbeReport:
    """The report of ``backend``; raises ``ReportFault`` for anything it would be unsafe to believe."""
    try:
        status = value["status"]
        if status == "broken":
            return ProbeReport("broken", None, None, _text(value, "reason_detail"), _text(value, "message"))
        description = check_description(_read_description(value["description"]), backend)
        evidence = check_evidence(_read_evidence(value["evidence"]), backend)
    except (KeyError, TypeError, ValueError) as problem:
        raise ReportFault(f"the report of backend {backend!r} is not as agreed ({problem})") from problem
    if status != evidence.status:
        raise ReportFault(f"the report of backend {backend!r} says {status!r} over evidence {evidence.status!r}")
    return ProbeReport(evidence.status, description, evidence)


def encode_report(report: ProbeReport) -> bytes:
    """The line with its newline; raises ``ReportFault`` when a value has no JSON form or the line is too long."""
    try:
        text = json.dumps(report_to_json(report), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ReportFault(f"a value of the evidence has no JSON form ({problem}); report text and numbers") from problem
    line = text.encode("ascii") + b"\n"
    if len(line) > MAX_REPORT_BYTES:
        raise ReportFault(
            f"description and evidence take {len(line)} bytes and the limit is {MAX_REPORT_BYTES}; report fewer facts"
        )
    return line


def decode_report(line: bytes, backend: str) -> ProbeReport:
    """The report in exactly one line; raises ``ReportFault``."""
    if not line.endswith(b"\n") or line.count(b"\n") != 1:
        raise ReportFault(f"the probe of backend {backend!r} printed {line[:80]!r} where one JSON line was expected")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise ReportFault(f"the probe of backend {backend!r} printed {line[:80]!r}, which is not JSON") from problem
    return report_from_json(value, backend)


def _read_description(value: Mapping[str, Any]) -> BackendDescription:
    given = dict(value)
    batch, packed = given.get("recommended_batch"), given.get("packed")
    for name, item in given.items():
        if isinstance(item, list):
            given[name] = tuple(item)
    given["recommended_batch"] = None if batch is None else BatchPolicy(**batch)
    given["packed"] = None if packed is None else PackedSupport(tuple(packed["widths"]), packed["max_rows"])
    return BackendDescription(**given)


def _read_evidence(value: Mapping[str, Any]) -> CapabilityEvidence:
    premises = {name: tuple(items) for name, items in dict(value["premises"]).items()}
    return CapabilityEvidence(**{**value, "premises": Premises(**premises)})


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value[key]
    if not isinstance(text, str):
        raise TypeError(f"{key} is {text!r}, not text")
    return text


def _plain_fields(
    value: BackendDescription | CapabilityEvidence | BatchPolicy | PackedSupport | Premises | None,
) -> dict[str, Any] | None:
    if value is None:
        return None
    return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}


def _plain(value: Any) -> Any:
    """The value in JSON's own types; ``dataclasses.asdict`` would choke on a read-only mapping."""
    if isinstance(value, BatchPolicy | PackedSupport | Premises):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _clip(text: str) -> str:
    while len(json.dumps(text)) > _MAX_MESSAGE_BYTES:
        text = f"{text[: len(text) * 3 // 4]}…"
    return text
