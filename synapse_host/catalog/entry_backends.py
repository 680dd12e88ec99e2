"""Where an entry can run here: the document's rows held against what was seen of their backends. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synapse_host.backends.backend_row import BackendRow
from synapse_host.catalog.entries import CatalogBackend, CatalogEntry
from synapse_host.errors import BackendUnavailable
from synapse_host.hookspecs import BackendDescription, RefusalReason
from synapse_host.values import value_object


@value_object
class EntryBackend:
    """One row of an entry on this machine; ``reason`` is None where it runs, ``description`` where nobody gave one."""

    row: CatalogBackend
    lane_id: str
    reason: RefusalReason | None
    reason_detail: str | None = None
    message: str | None = None
    description: BackendDescription | None = None

    @property
    def runnable(self) -> bool:
        """Whether the entry can run on it here."""
        return self.reason is None


def entry_backends(entry: CatalogEntry, seen: Mapping[str, BackendRow]) -> list[EntryBackend]:
    """The rows of ``entry`` in catalog order."""
    return [_judged(entry, row, seen.get(row.backend)) for row in entry.backends]


def first_runnable(backends: Sequence[EntryBackend]) -> EntryBackend | None:
    """The one a catalog id selects."""
    return next((backend for backend in backends if backend.runnable), None)


def unavailable(entry: CatalogEntry, lane_id: str | None, backends: Sequence[EntryBackend]) -> BackendUnavailable:
    """The refusal where none of ``backends`` runs: all of the entry's, or the one that a lane id selected."""
    reasons = "; ".join(f"{one.row.backend}: {one.message or one.reason}" for one in backends)
    return BackendUnavailable(
        f"model {lane_id or entry.id!r} cannot run on this machine ({reasons or 'it has no backend in this version'}); "
        "choose another model, or load one on the cpu backend",
        details={
            "catalog_id": entry.id,
            "lane_id": lane_id,
            "backends": [{"backend": one.row.backend, "reason": one.reason} for one in backends],
        },
    )


def _judged(entry: CatalogEntry, row: CatalogBackend, seen: BackendRow | None) -> EntryBackend:
    lane_id = entry.lane_id(row.backend)
    if seen is None:
        message = f"backend {row.backend!r} is not installed"
        return EntryBackend(row, lane_id, "worker_missing", "not_installed", message)
    if not seen.runnable or seen.description is None:
        return EntryBackend(row, lane_id, seen.reason or "worker_missing", seen.reason_detail, seen.message)
    missing = _missing(entry, row, seen.description)
    if missing is not None:
        detail, message = missing
        return EntryBackend(row, lane_id, "device_below_floor", detail, message, seen.description)
    return EntryBackend(row, lane_id, None, description=seen.description)


def _missing(entry: CatalogEntry, row: CatalogBackend, described: BackendDescription) -> tuple[str, str] | None:
    """What the backend does not have that the row needs: a fine word and a sentence."""
    for detail, needed, offered in (
        ("task_unsupported", entry.task, described.tasks),
        ("family_unsupported", entry.family, described.families),
        ("dtype_unsupported", row.dtype, described.dtypes),
    ):
        if needed not in offered:
            return detail, f"backend {row.backend!r} has {', '.join(offered)} here and the model needs {needed}"
    return None
