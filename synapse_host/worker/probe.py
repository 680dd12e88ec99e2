"""The bounded child that describes and probes one backend: one JSON line on standard output, then exit.

The line is a ``ProbeReport`` of at most 4096 bytes; the exit status is 0 when the backend can run, 2 when it refuses
with its evidence, 1 when the plugin is broken. Everything a plugin or a native library prints goes to standard error,
whose tail the host keeps. The host runs it as ``python -m synapse_host.worker.probe BACKEND``.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence

from synapse_host.backends.backend_settings import parse_settings
from synapse_host.backends.description_check import DescriptionFault, check_evidence
from synapse_host.backends.hook_check import PROBE
from synapse_host.backends.loaded_plugin import LoadedPlugin, PluginRefused, load_plugin
from synapse_host.backends.probe_report import EXIT_CODES, ProbeReport, ReportFault, encode_report
from synapse_host.hookspecs import BackendSettings
from synapse_host.worker.parent_death import die_with_parent
from synapse_host.worker.standard_streams import divert_stdout, secure_standard_streams

#: Seconds after which the child ends itself. The host stops waiting at 10; this is for a host that died meanwhile.
SELF_LIMIT_S = 15
#: Exit status of a wrong command line (sysexits.h).
EXIT_USAGE = 64


def run_probe(backend: str, settings: BackendSettings) -> int:
    """Answer for ``backend`` on the original standard output, which is diverted for good; returns the exit status."""
    answer = divert_stdout()
    report = _examine(backend, settings)
    try:
        line = encode_report(report)
    except ReportFault as fault:
        report = ProbeReport("broken", reason_detail="evidence_invalid", message=str(fault))
        line = encode_report(report)
    with os.fdopen(answer, "wb") as out:
        out.write(line)
    return EXIT_CODES[report.status]


def main() -> int:
    """Probe the backend named on the command line; returns the exit status."""
    try:
        backend, settings = _arguments(sys.argv[1:])
    except ValueError:
        sys.stderr.write("usage: python -m synapse_host.worker.probe BACKEND [--setting NAME=VALUE ...]\n")
        return EXIT_USAGE
    secure_standard_streams()
    if not die_with_parent():
        return 0
    if hasattr(signal, "alarm"):
        signal.alarm(SELF_LIMIT_S)
    return run_probe(backend, settings)


def _arguments(given: Sequence[str]) -> tuple[str, BackendSettings]:
    backend, *rest = given
    if any(flag != "--setting" for flag in rest[::2]) or len(rest) % 2:
        raise ValueError(rest)
    return backend, parse_settings(rest[1::2])


def _examine(backend: str, settings: BackendSettings) -> ProbeReport:
    try:
        return _probe(load_plugin(backend, settings))
    except PluginRefused as refusal:
        traceback.print_exc()
        return ProbeReport("broken", reason_detail=refusal.reason_detail, message=str(refusal))
    except DescriptionFault as fault:
        return ProbeReport("broken", reason_detail="evidence_invalid", message=str(fault))
    except BaseException as problem:  # whatever a plugin raises, sys.exit included, is an answer about that plugin
        traceback.print_exc()
        text = f"{PROBE} of backend {backend!r} raised {type(problem).__name__}: {problem}"
        return ProbeReport("broken", reason_detail="probe_failed", message=text)


def _probe(plugin: LoadedPlugin) -> ProbeReport:
    evidence = check_evidence(plugin.hook(PROBE)(), plugin.name)
    return ProbeReport(evidence.status, plugin.description, evidence)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the teardown of a native library must not turn an answer into a crash, or hang after it.
    os._exit(status)
