"""Reports of the describe-and-probe child, kept so that an unchanged plugin is not started again (reading 37).

One JSON file per backend, interpreter and distribution, written whole or not at all. Only what a plugin itself answered
is kept: a crash or a time-out may be gone next time, and its remedy must be seen to work. Nothing here raises for the
state of the files: a cache that cannot be read or written costs a probe, not a request.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from synapse_host.backends.backend_settings import setting_arguments
from synapse_host.backends.discovery import BackendEntry
from synapse_host.backends.module_stamp import module_stamp
from synapse_host.backends.premises import premises_stamp
from synapse_host.backends.probe_report import ProbeReport, ReportFault, report_from_json, report_to_json
from synapse_host.hookspecs import BackendSettings
from synapse_host.values import value_object

_log = logging.getLogger(__name__)

#: Changes whenever the file's layout does.
_LAYOUT = 3
#: Our own code that makes or judges a report: the rules, and the families and ops whose digest a plugin describes.
SHARED_CODE = (
    "synapse_host",
    "synapse_host.backends",
    "synapse_host.families",
    "synapse_host.model_files",
    "synapse_host.ops",
    "synapse_host.owned_engine",
    "synapse_host.worker",
)
#: Linux's word for "since the machine started": devices and drivers rarely change without it changing too.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@value_object
class CacheKey:
    """Everything that must be the same for a kept report to be believed.

    ``shared_code`` stamps the host's own part in a report, ``machine`` the machine and its boot: evidence is about one
    machine, and a home directory may be shared by several. ``settings`` are the operator's for the backend.
    """

    layout: int
    backend: str
    distribution: str
    version: str
    record_digest: str
    module: str
    module_stamp: str
    interpreter: str
    machine: str
    shared_code: str
    settings: str


def cache_key(entry: BackendEntry, settings: BackendSettings = MappingProxyType({})) -> CacheKey:
    """The key of ``entry`` now, from metadata and file times; imports no plugin."""
    return CacheKey(
        layout=_LAYOUT,
        backend=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        record_digest=entry.record_digest,
        module=entry.module,
        module_stamp=module_stamp(entry.module),
        interpreter=f"{sys.executable} {sys.version}",
        machine=_machine(),
        shared_code=" ".join(map(module_stamp, SHARED_CODE)),
        settings=" ".join(setting_arguments(settings)),
    )


def cache_file(folder: Path, key: CacheKey) -> Path:
    """Where the report of ``key`` lives; a newer version of the same plugin takes the same file."""
    owner = sha256(f"{key.distribution}\n{key.interpreter}".encode()).hexdigest()[:16]
    return folder / f"{key.backend}-{owner}.json"


def read_report(folder: Path, key: CacheKey) -> ProbeReport | None:
    """The kept report; None when there is none, its key or its premises are others now, or the file is damaged."""
    try:
        kept = json.loads(cache_file(folder, key).read_bytes())
        if kept["key"] != asdict(key):
            return None
        report = report_from_json(kept["report"], key.backend)
        if kept["premises"] != _premises(report):
            return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ReportFault) as problem:
        _log.warning("ignoring the damaged evidence file %s (%s)", cache_file(folder, key), problem)
        return None
    return None if report.status == "broken" else report


def write_report(folder: Path, key: CacheKey, report: ProbeReport) -> None:
    """Keep an ``ok`` or ``refused`` report; a failure to write is logged and costs a probe next time."""
    if report.status == "broken":
        return
    kept = {"key": asdict(key), "premises": _premises(report), "report": report_to_json(report)}
    text = json.dumps(kept, indent=1)
    target = cache_file(folder, key)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(target, text)
    except OSError as problem:
        _log.warning("the evidence of backend %s is not kept in %s (%s)", key.backend, target, problem)


def _premises(report: ProbeReport) -> str:
    return "" if report.evidence is None else premises_stamp(report.evidence.premises, os.environ)


def _replace(target: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(name, target)  # noqa: PTH105 - both are plain names here
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _machine() -> str:
    about = platform.uname()
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{about.system} {about.node} {about.release} {about.machine} {boot}".strip()
