"""Reads a catalog document: JSON in, checked entries out. The shipped one is ``catalog.json`` beside this module.

A document that breaks a rule is a defect of the package, so the message names entry, value and rule. A pin that does
not fit its row is not judged here: the lane is refused, with ``artifact_invalid``, before its engine starts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from synapse_host.catalog.document_rules import document_faults
from synapse_host.catalog.entries import (
    CATALOG_BACKENDS,
    Catalog,
    CatalogBackend,
    CatalogEngine,
    CatalogEntry,
    CatalogFile,
    FileRole,
    Upstream,
)
from synapse_host.errors import StartRefused
from synapse_host.hookspecs import DType, Pooling
from synapse_host.identity.numeric_profile import EngineIdentity

SHIPPED = Path(__file__).with_name("catalog.json")

_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
#: No more than the store's columns hold.
_Count = Annotated[int, Field(gt=0, lt=2**63)]
_Id = Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,100}$")]
_Text = Annotated[str, Field(min_length=1)]


class CatalogInvalid(StartRefused):
    """The catalog document breaks a rule of its own; the message names what and where."""


def _leads_nowhere(name: str) -> str:
    """A name upstream of which no part leads anywhere else."""
    if ".." in name or name.startswith(".") or "/." in name:
        raise ValueError("a part of it is no name")
    return name


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _File(_Part):
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$"), AfterValidator(_leads_nowhere)]
    role: FileRole
    sha256: _Sha256
    size_bytes: _Count
    backends: list[str]

    def value(self) -> CatalogFile:
        return CatalogFile(self.path, self.role, self.sha256, self.size_bytes, tuple(self.backends))


class _Engine(_Part):
    engine: _Text
    version: _Text
    build_flags: dict[str, str]
    kernel_revision: _Text | None
    manifest_digest: _Sha256 | None
    unpinned_flags: list[str] = Field(default_factory=list)

    def value(self) -> CatalogEngine:
        identity = EngineIdentity(self.engine, self.version, self.build_flags)
        return CatalogEngine(identity, self.kernel_revision, self.manifest_digest, tuple(self.unpinned_flags))


class _Backend(_Part):
    backend: str
    shipped: bool
    dtype: DType
    pooling: Pooling
    normalize: bool
    dims: _Count
    max_tokens: _Count
    attention_units: _Count
    quant: _Text = "none"
    rerank_abs_tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    fingerprint: _Sha256

    def value(self, engine: CatalogEngine) -> CatalogBackend:
        return CatalogBackend(engine=engine, **self.model_dump())


class _Upstream(_Part):
    hf_repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$"), AfterValidator(_leads_nowhere)]
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


class _SelfCheck(_Part):
    reference: _Text
    fixture_revision: _Count


class _Entry(_Part):
    id: _Id
    task: Literal["embed", "rerank"]
    name: _Text
    description: _Text
    default_for_task: bool
    upstream: _Upstream
    family: _Text
    vocab_size: _Count
    sanitized_tokenizer_sha256: _Sha256 | None
    template: dict[str, str | int] | None = None
    files: list[_File]
    backends: list[_Backend]
    self_check: _SelfCheck | None = None

    def value(self, engines: dict[str, CatalogEngine]) -> CatalogEntry:
        return CatalogEntry(
            id=self.id,
            task=self.task,
            name=self.name,
            description=self.description,
            default_for_task=self.default_for_task,
            upstream=Upstream(self.upstream.hf_repo, self.upstream.revision),
            family=self.family,
            vocab_size=self.vocab_size,
            sanitized_tokenizer_sha256=self.sanitized_tokenizer_sha256,
            template=self.template,
            files=tuple(file.value() for file in self.files),
            backends=tuple(row.value(engines[row.backend]) for row in self.backends),
            self_check=self.self_check.reference if self.self_check else None,
            fixture_revision=self.self_check.fixture_revision if self.self_check else 0,
        )


class _Document(_Part):
    catalog_revision: _Count
    engines: dict[str, _Engine]
    entries: Annotated[list[_Entry], Field(min_length=1)]


def read_catalog(path: Path = SHIPPED, *, backend_ids: Collection[str] = CATALOG_BACKENDS) -> Catalog:
    """The catalog of a file; raises ``CatalogInvalid`` naming the file, also where it cannot be read."""
    try:
        return parse_catalog(path.read_bytes(), backend_ids=backend_ids)
    except (OSError, CatalogInvalid) as fault:
        raise CatalogInvalid(f"{path}: {fault}; install synapse-host again") from fault


def parse_catalog(data: bytes, *, backend_ids: Collection[str] = CATALOG_BACKENDS) -> Catalog:
    """The catalog of a document whose entries may declare ``backend_ids``, entries by id; raises ``CatalogInvalid``."""
    try:
        document = _Document.model_validate(json.loads(data, object_pairs_hook=_no_doubles))
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CatalogInvalid(f"{place} = {first['input']!r:.80}: {first['msg']}") from None
    except (ValueError, RecursionError) as fault:
        raise CatalogInvalid(f"is no catalog: {fault}") from None
    engines = {backend: engine.value() for backend, engine in document.engines.items()}
    unknown = [row.backend for entry in document.entries for row in entry.backends if row.backend not in engines]
    if unknown:
        raise CatalogInvalid(f"backend {unknown[0]!r} is declared and has no engine; describe it under engines")
    entries = tuple(sorted((entry.value(engines) for entry in document.entries), key=lambda entry: entry.id))
    faults = document_faults(entries, backend_ids)
    if faults:
        raise CatalogInvalid("; ".join(faults))
    return Catalog(document.catalog_revision, entries, tuple(backend_ids))


def _no_doubles(members: list[tuple[str, object]]) -> dict[str, object]:
    doubled = [name for name, times in Counter(name for name, _ in members).items() if times > 1]
    if doubled:
        raise ValueError(f"member {doubled[0]!r} is given twice")
    return dict(members)
