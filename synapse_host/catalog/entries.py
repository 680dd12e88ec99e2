"""The catalog as the host knows it: entries with their pinned files, and one row for each backend that may run them.

Plain values made by ``document``; nothing here does I/O. What a row computes is said by its ``fingerprint``, the pin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from synapse_host.hookspecs import DType, Pooling, Task
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.values import value_object

FileRole = Literal["model", "tokenizer", "config"]

#: Backends a shipped entry may declare; ``<catalog id>-<backend>`` is reserved for all of them, declared or not.
CATALOG_BACKENDS: tuple[str, ...] = ("metal", "ane", "cuda", "vulkan")


@value_object
class CatalogFile:
    """One file of an entry, as it is named upstream; ``backends`` need it."""

    path: str
    role: FileRole
    sha256: str
    size_bytes: int
    backends: tuple[str, ...]


@value_object
class Upstream:
    """Where the files come from: a repository and the 40 hex digits of one of its commits."""

    hf_repo: str
    revision: str


@value_object
class CatalogEngine:
    """What the document expects the engine of a backend to be; never asked of the plugin that is checked against it.

    ``unpinned_flags`` are build flags that say what the engine runs on, a driver or a library: no pin covers them, and
    a lane checks its numbers anew when one changes.
    """

    identity: EngineIdentity
    kernel_revision: str | None
    manifest_digest: str | None
    unpinned_flags: tuple[str, ...] = ()


@value_object
class CatalogBackend:
    """One backend of an entry. ``shipped`` rows are always declared; the others where a setting switches them on.

    ``fingerprint`` is the pin as the document states it. ``pins`` says what it must be.
    """

    backend: str
    engine: CatalogEngine
    shipped: bool
    dtype: DType
    pooling: Pooling
    normalize: bool
    dims: int
    max_tokens: int
    attention_units: int
    quant: str
    fingerprint: str
    rerank_abs_tolerance: float | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """One model of the catalog. ``template`` are the members of its pair template, for a reranker alone.

    ``sanitized_tokenizer_sha256`` is the tokenizer's identity without padding and truncation; None where only that of
    the published file is known. ``self_check`` names the reference its lanes are checked against at load.
    """

    id: str
    task: Task
    name: str
    description: str
    default_for_task: bool
    upstream: Upstream
    family: str
    vocab_size: int
    sanitized_tokenizer_sha256: str | None
    template: Mapping[str, str | int] | None
    files: tuple[CatalogFile, ...]
    backends: tuple[CatalogBackend, ...]
    self_check: str | None = None
    fixture_revision: int = 0

    @cached_property
    def manifest_digest(self) -> str:
        """The identity of an install: SHA-256 of the canonical JSON of the files and where they come from."""
        files = [{"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes} for file in self.files]
        upstream = {"hf_repo": self.upstream.hf_repo, "revision": self.upstream.revision}
        return sha256_hex(canonical_json({"files": files, "upstream": upstream}))

    def lane_id(self, backend: str) -> str:
        """The id of the entry's lane on ``backend``."""
        return f"{self.id}-{backend}"

    @property
    def lane_ids(self) -> list[str]:
        """The ids of its declared lanes, in catalog order."""
        return [self.lane_id(row.backend) for row in self.backends]

    def row(self, backend: str) -> CatalogBackend | None:
        """The row of ``backend``, where the entry declares it."""
        return next((row for row in self.backends if row.backend == backend), None)

    def files_of(self, backends: Collection[str]) -> tuple[CatalogFile, ...]:
        """The files that any of ``backends`` needs, in catalog order, each once."""
        return tuple(file for file in self.files if not frozenset(backends).isdisjoint(file.backends))

    def file(self, role: FileRole) -> CatalogFile | None:
        """The file of ``role``, where the entry has one."""
        return next((file for file in self.files if file.role == role), None)


@dataclass(frozen=True)
class Catalog:
    """Every entry, by id. ``backend_ids`` are those an id of ours may end in."""

    revision: int
    entries: tuple[CatalogEntry, ...]
    backend_ids: tuple[str, ...] = CATALOG_BACKENDS
    _by_id: Mapping[str, CatalogEntry] = field(init=False, repr=False, compare=False)
    _by_lane_id: Mapping[str, tuple[CatalogEntry, str]] = field(init=False, repr=False, compare=False)
    _by_fingerprint: Mapping[str, tuple[CatalogEntry, CatalogBackend]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every request for a model asks all three.
        lanes = {entry.lane_id(backend): (entry, backend) for entry in self.entries for backend in self.backend_ids}
        rows = {row.fingerprint: (entry, row) for entry in reversed(self.entries) for row in reversed(entry.backends)}
        object.__setattr__(self, "_by_id", {entry.id: entry for entry in self.entries})
        object.__setattr__(self, "_by_lane_id", lanes)
        object.__setattr__(self, "_by_fingerprint", rows)

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self.entries)

    def entry(self, catalog_id: str) -> CatalogEntry | None:
        """The entry of this id, or None."""
        return self._by_id.get(catalog_id)

    def derived(self, model_id: str) -> tuple[CatalogEntry, str] | None:
        """The entry and the backend of a derived lane id, declared or not; None for any other id."""
        return self._by_lane_id.get(model_id)

    def reserves(self, model_id: str) -> bool:
        """Whether no other model may have this id."""
        return model_id in self._by_id or self.derived(model_id) is not None

    def lane(self, lane_id: str) -> tuple[CatalogEntry, CatalogBackend] | None:
        """The entry and the row of a declared lane id; None for any other."""
        found = self.derived(lane_id)
        row = found[0].row(found[1]) if found else None
        return (found[0], row) if found and row else None

    def of_fingerprint(self, fingerprint: str) -> tuple[CatalogEntry, CatalogBackend] | None:
        """The entry and the row this pin belongs to."""
        return self._by_fingerprint.get(fingerprint)

    def default(self, task: Task) -> CatalogEntry | None:
        """The entry that answers a request of ``task`` that names no model."""
        return next((entry for entry in self.entries if entry.task == task and entry.default_for_task), None)

    def with_backends(self, switched_on: Collection[str]) -> Catalog:
        """The catalog of a host: shipped rows and those of ``switched_on``; files that no row needs are left out."""
        return replace(self, entries=tuple(_declared(entry, switched_on) for entry in self.entries))


def _declared(entry: CatalogEntry, switched_on: Collection[str]) -> CatalogEntry:
    rows = tuple(row for row in entry.backends if row.shipped or row.backend in switched_on)
    return replace(entry, backends=rows, files=entry.files_of([row.backend for row in rows]))
