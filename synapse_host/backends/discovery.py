"""Which backends are installed, from entry-point metadata alone: no plugin is imported here (reading 37)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.metadata import Distribution, EntryPoint, distributions

from synapse_host.values import value_object

#: Entry-point group a backend registers itself under; the name is the backend id, the value its plugin module.
ENTRY_POINT_GROUP = "synapse_host.backends"
#: A backend id travels in file names, command lines and lane ids.
_BACKEND_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@value_object
class EntryFault:
    """Why an entry cannot even be tried: a fine word and the text that names the thing, the value and the remedy."""

    reason_detail: str
    message: str


@value_object
class BackendEntry:
    """One backend an installed distribution offers. ``record_digest`` is the sha256 of its RECORD, or empty."""

    name: str
    module: str
    distribution: str
    version: str
    record_digest: str
    fault: EntryFault | None = None


def list_backends(search_path: Sequence[str] | None = None) -> list[BackendEntry]:
    """Every backend registered on ``sys.path`` (or ``search_path``), by name; one that is unusable carries a fault.

    A distribution whose metadata cannot be read becomes an entry with a fault and hides no other.
    """
    found = [entry for dist in _unique(_candidates(search_path)) for entry in _entries_of(dist)]
    by_name: defaultdict[str, list[BackendEntry]] = defaultdict(list)
    for entry in found:
        by_name[entry.name].append(entry)
    return [_merge(by_name[name]) for name in sorted(by_name)]


def _candidates(search_path: Sequence[str] | None) -> Iterator[Distribution]:
    found = distributions() if search_path is None else distributions(path=list(search_path))
    return (dist for dist in found if _names_the_group(dist))


def _names_the_group(dist: Distribution) -> bool:
    """Whether the group stands in the entry-point file; decided first, because parsing METADATA costs far more."""
    try:
        return ENTRY_POINT_GROUP in (dist.read_text("entry_points.txt") or "")
    except (OSError, UnicodeError):
        return _raw_file_names_the_group(dist)


def _raw_file_names_the_group(dist: Distribution) -> bool:
    folder = getattr(dist, "_path", None)
    try:
        return folder is not None and ENTRY_POINT_GROUP.encode() in (folder / "entry_points.txt").read_bytes()
    except OSError:
        return False


def _unique(found: Iterable[Distribution]) -> Iterator[Distribution]:
    """Each distribution once: the first on the path is the one that imports."""
    seen: set[str] = set()
    for dist in found:
        name = re.sub(r"[-_.]+", "-", _name(dist)).lower()
        if name not in seen:
            seen.add(name)
            yield dist


def _entries_of(dist: Distribution) -> list[BackendEntry]:
    try:
        points = [point for point in dist.entry_points if point.group == ENTRY_POINT_GROUP]
    except Exception as problem:  # the parser of importlib.metadata raises whatever it trips over
        return [_unreadable(dist, problem)]
    return [_entry(point, dist) for point in points]


def _entry(point: EntryPoint, dist: Distribution) -> BackendEntry:
    name, version = _name(dist), _text(dist, "Version") or "unknown"
    return BackendEntry(
        name=point.name,
        module=point.value.strip(),
        distribution=name,
        version=version,
        record_digest=_record_digest(dist),
        fault=_entry_fault(point, name),
    )


def _entry_fault(point: EntryPoint, distribution: str) -> EntryFault | None:
    if not _BACKEND_ID.fullmatch(point.name):
        wanted = "lower-case letters, digits, '-' and '_', at most 64"
        return EntryFault(
            "entry_point_invalid",
            f"distribution {distribution!r} registers a backend named {point.name!r}; a backend id has {wanted}",
        )
    if not _MODULE.fullmatch(point.value.strip()):
        return EntryFault(
            "entry_point_invalid",
            f"backend {point.name!r} of distribution {distribution!r} points at {point.value!r}; "
            "the entry point must name a module, such as 'my_backend.plugin'",
        )
    return None


def _merge(entries: Sequence[BackendEntry]) -> BackendEntry:
    """One entry per name; a name two distributions claim is nobody's."""
    first = entries[0]
    if len(entries) == 1:
        return first
    owners = " and ".join(sorted(f"{entry.distribution} {entry.version}" for entry in entries))
    fault = EntryFault(
        "duplicate_backend", f"backend {first.name!r} is registered by {owners}; uninstall all but one of them"
    )
    return BackendEntry(first.name, first.module, first.distribution, first.version, first.record_digest, fault)


def _unreadable(dist: Distribution, problem: Exception) -> BackendEntry:
    name = _name(dist)
    message = (
        f"the entry points of distribution {name!r} cannot be read ({type(problem).__name__}: {problem}); reinstall it"
    )
    version = _text(dist, "Version") or "unknown"
    return BackendEntry(name, "", name, version, "", EntryFault("metadata_unreadable", message))


def _name(dist: Distribution) -> str:
    folder = getattr(getattr(dist, "_path", None), "name", "unknown")
    return _text(dist, "Name") or str(folder)


def _text(dist: Distribution, key: str) -> str | None:
    try:
        value = dist.metadata[key]
    except Exception:  # a distribution without readable METADATA is still listed, by its folder
        return None
    return str(value) if value else None


def _record_digest(dist: Distribution) -> str:
    try:
        record = dist.read_text("RECORD")
    except (OSError, UnicodeError):
        record = None
    return sha256(record.encode("utf-8", "surrogateescape")).hexdigest() if record else ""
