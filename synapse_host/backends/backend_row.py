"""One row of ``backends``: what the host knows of a backend, and the judgement that makes it. Pure.

Reasons are the contract's four (reading 3); ``reason_detail`` is the fine word beside them. Whatever keeps a plugin
from answering is ``worker_missing``, unless its platform says that it never could.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.backends.discovery import BackendEntry
from synapse_host.backends.known import KNOWN_BACKENDS, KnownBackend, supports_platform
from synapse_host.backends.probe_report import (
    EXIT_CODES,
    MAX_REPORT_BYTES,
    PROBE_TIMEOUT_S,
    ChildOutcome,
    ProbeReport,
    ReportFault,
    decode_report,
)
from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, RefusalReason
from synapse_host.values import value_object


@value_object
class BackendRow:
    """A backend and whether it runs here. ``evidence`` keeps the facts of a refusal beside their floor."""

    backend: str
    runnable: bool
    description: BackendDescription | None = None
    evidence: CapabilityEvidence | None = None
    reason: RefusalReason | None = None
    reason_detail: str | None = None
    message: str | None = None
    stderr_tail: str = ""


def read_outcome(entry: BackendEntry, outcome: ChildOutcome, *, timeout_s: float = PROBE_TIMEOUT_S) -> ProbeReport:
    """The child's report, or a ``broken`` one that says how the child failed to make it."""
    try:
        report = decode_report(outcome.answer, entry.name) if _answered(outcome) else None
    except ReportFault as fault:
        return _broken("probe_failed", str(fault))
    if report is None:
        reason_detail, what = _silence(outcome, timeout_s)
        return _broken(reason_detail, f"the probe of backend {entry.name!r} {what}{_last_words(outcome.stderr_tail)}")
    if EXIT_CODES[report.status] != outcome.exit_code:
        ended = _ended(outcome.exit_code)
        return _broken("probe_failed", f"the probe of backend {entry.name!r} answered {report.status!r} and {ended}")
    return report


def row_of_report(entry: BackendEntry, report: ProbeReport, machine: str, stderr_tail: str = "") -> BackendRow:
    """The row of an installed backend on ``machine``, a platform as ``known.current_platform`` names it."""
    description, evidence = report.description, report.evidence
    if description is None or evidence is None:
        return _broken_row(entry, report, machine, stderr_tail)
    if not supports_platform(description.platforms, machine):
        message = _wrong_platform(entry.name, description.platforms, machine)
        return _not_here(entry.name, message, None, description, evidence, stderr_tail)
    if evidence.status == "ok":
        return BackendRow(entry.name, True, description, evidence, message=evidence.message, stderr_tail=stderr_tail)
    return BackendRow(
        entry.name,
        False,
        description,
        evidence,
        evidence.reason,
        evidence.reason_detail,
        evidence.message,
        stderr_tail,
    )


def row_of_fault(entry: BackendEntry, machine: str) -> BackendRow:
    """The row of an entry that cannot even be tried."""
    assert entry.fault is not None
    return _broken_row(entry, _broken(entry.fault.reason_detail, entry.fault.message), machine, "")


def row_of_absent(known: KnownBackend, machine: str) -> BackendRow:
    """The row of a backend that is known and not installed."""
    absence = "not_installed" if known.built else "backend_not_built"
    if not supports_platform(known.platforms, machine):
        return _not_here(known.backend, _wrong_platform(known.backend, known.platforms, machine), absence)
    if not known.built:
        message = f"backend {known.backend!r} is planned and this version does not have it; use another backend"
        return BackendRow(known.backend, False, None, None, "worker_missing", absence, message)
    message = f"backend {known.backend!r} is not installed; install it with: {known.install_command}"
    return BackendRow(known.backend, False, None, None, "worker_missing", "not_installed", message)


def rows_as_json(rows: Sequence[BackendRow]) -> list[dict[str, Any]]:
    """The rows as ``backends --json`` and the wire show them; what is unknown is null or empty, never left out."""
    return [_as_json(row) for row in rows]


def _broken_row(entry: BackendEntry, report: ProbeReport, machine: str, stderr_tail: str) -> BackendRow:
    message = f"{report.message}; {_remedy(entry)}"
    known = KNOWN_BACKENDS.get(entry.name)
    if known is not None and not supports_platform(known.platforms, machine):
        message = f"{_wrong_platform(entry.name, known.platforms, machine)} ({message})"
        return _not_here(entry.name, message, report.reason_detail, stderr_tail=stderr_tail)
    return BackendRow(
        entry.name, False, None, None, "worker_missing", report.reason_detail, message, stderr_tail=stderr_tail
    )


def _not_here(
    backend: str,
    message: str,
    reason_detail: str | None,
    description: BackendDescription | None = None,
    evidence: CapabilityEvidence | None = None,
    stderr_tail: str = "",
) -> BackendRow:
    reason: RefusalReason = "not_supported_on_platform"
    return BackendRow(backend, False, description, evidence, reason, reason_detail, message, stderr_tail)


def _broken(reason_detail: str, message: str) -> ProbeReport:
    return ProbeReport("broken", reason_detail=reason_detail, message=message)


def _answered(outcome: ChildOutcome) -> bool:
    return outcome.ending == "exited" and bool(outcome.answer)


def _silence(outcome: ChildOutcome, timeout_s: float) -> tuple[str, str]:
    """The fine word and the text for a child that gave no usable answer."""
    if outcome.ending == "timed_out":
        return "probe_timeout", f"did not end within {timeout_s:g} s and was stopped"
    if outcome.ending == "overflowed":
        return "probe_output_too_large", f"answered with more than {MAX_REPORT_BYTES} bytes and was stopped"
    if outcome.ending == "not_started":
        return "probe_failed", "could not be started"
    return "probe_failed", f"{_ended(outcome.exit_code)} without an answer"


def _ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"exited with status {exit_code}"


def _wrong_platform(backend: str, platforms: Sequence[str], machine: str) -> str:
    return f"backend {backend!r} runs on {', '.join(platforms)} and this machine is {machine}; use another backend"


def _last_words(stderr_tail: str) -> str:
    """The last line of standard error, when there is one: it usually names the cause."""
    lines = stderr_tail.strip().splitlines()
    return f" (its last output: {lines[-1].strip()[:200]})" if lines else ""


def _remedy(entry: BackendEntry) -> str:
    look = f"to see it happen run: python -m synapse_host.worker.probe {entry.name}"
    return f"update, repair or uninstall {entry.distribution} {entry.version}; {look}"


def _as_json(row: BackendRow) -> dict[str, Any]:
    known = KNOWN_BACKENDS.get(row.backend)
    described, evidence = row.description, row.evidence
    source = described or known
    return {
        "backend": row.backend,
        "engine": source.engine if source else None,
        "engine_version": described.engine_version if described else None,
        "build_flags": dict(described.build_flags) if described else {},
        "owned": described.owned if described else None,
        "tasks": list(described.tasks) if described else [],
        "families": list(described.families) if described else [],
        "dtypes": list(described.dtypes) if described else [],
        "device_class": source.device_class if source else None,
        "extra": source.extra if source else None,
        "runnable": row.runnable,
        "reason": row.reason,
        "reason_detail": row.reason_detail,
        "message": row.message,
        "required": dict(evidence.required) if evidence else {},
        "observed": dict(evidence.observed) if evidence else {},
    }
