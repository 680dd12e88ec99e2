"""The files of one catalog lane at load: held in the cache, checked against the document, and what a bad one means.

Before an engine starts the lane's fingerprint is computed twice: from the document, and with the engine that is
installed now in the place of the one the document expects. Both must be the pin. Nothing here uses the network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.catalog.entries import CatalogEngine, CatalogEntry, CatalogFile
from synapse_host.catalog.entry_backends import EntryBackend
from synapse_host.catalog.pins import computed_pin
from synapse_host.errors import ArtifactInvalid, SynapseError
from synapse_host.hookspecs import BackendDescription
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.model_files.source_files import FileDigest, digest_file
from synapse_host.models.file_errors import artifact_invalid
from synapse_host.models.load_refusals import load_refusal
from synapse_host.models.model_package import LARGEST_CONFIG, read_verified
from synapse_host.models.model_preparation import LARGEST_TOKENIZER
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.tokenization.pairs import LaneTokenizer, PairTokenizer
from synapse_host.values import value_object

StartWorker = Callable[[RegisteredModel], Awaitable[Worker]]
#: What a person does about a bad file.
RECOVERY = "models.download"


class Lease(Protocol):
    """A hold on content of the cache."""

    def release(self) -> None: ...


class Blobs(Protocol):
    """The model cache, as far as a lane reads it. Calls block on the disk."""

    def lease(self, digest: str) -> Lease: ...
    def path(self, digest: str) -> Path: ...


class Damage(Protocol):
    """Hears of content that is not what its digest says: it is set aside, and what was installed from it is marked."""

    async def __call__(self, sha256: str) -> None: ...


@value_object
class CatalogPackage:
    """The files of the lane of ``entry`` on ``backend``."""

    entry: CatalogEntry
    backend: EntryBackend
    blobs: Blobs
    damage: Damage
    tasks: TaskGroup

    async def read_tokenizer(self, model: RegisteredModel) -> LaneTokenizer:
        """Judge the pin, then read what the host needs of the files.

        Raises:
            ArtifactInvalid: the pin does not fit document or engine, or a file is missing or damaged.

        """
        self._require_pin()
        try:
            return await anyio.to_thread.run_sync(self._read, model)
        except ArtifactInvalid as error:
            await self._report(error)
            raise

    async def start_worker(self, start: StartWorker, model: RegisteredModel) -> Worker:
        """A worker for the lane, the files held while it may hold the model.

        Raises what ``start`` raises, and ``ArtifactInvalid`` for a bad file.
        """
        try:
            held = await anyio.to_thread.run_sync(self._held)
        except ArtifactInvalid as error:
            await self._report(error)
            raise
        try:
            worker = await start(model)
        except BaseException:
            held.close()
            raise
        self.tasks.start_soon(partial(release_after, worker, held), name=f"files of {model.model_id}")
        return worker

    async def load_error(self, refusal: WorkerRefusal, model: RegisteredModel) -> SynapseError:
        """The error of a refused LOAD; a bad file is found by hashing all of them again, and set aside."""
        error = load_refusal(refusal, model)
        if not isinstance(error, ArtifactInvalid):
            return error
        found = await anyio.to_thread.run_sync(self._file_at_fault, error.message)
        await self._report(found)
        return found

    def _require_pin(self) -> None:
        row, described = self.backend.row, self.backend.description
        installed = row if described is None else replace(row, engine=_engine_of(described, row.engine.unpinned_flags))
        for actual in (computed_pin(self.entry, row), computed_pin(self.entry, installed)):
            if actual != row.fingerprint:
                raise self._other_pin(actual)

    def _other_pin(self, actual: str) -> ArtifactInvalid:
        lane_id, expected = self.backend.lane_id, self.backend.row.fingerprint
        return ArtifactInvalid(
            f"model {lane_id!r} would compute under fingerprint {actual}, and the catalog pins {expected}; install the "
            "versions of synapse-host and its backend that belong together",
            details={"model_id": lane_id, "expected_fingerprint": expected, "actual_fingerprint": actual},
        )

    def _read(self, model: RegisteredModel) -> LaneTokenizer:
        with self._held():
            config = self._file("config")
            if config is not None:
                self._verified(config, LARGEST_CONFIG)
            tokenizer = self._file("tokenizer")
            assert tokenizer is not None
            read = open_tokenizer(self._verified(tokenizer, LARGEST_TOKENIZER), model)
        known = self.entry.sanitized_tokenizer_sha256
        if known is not None and read.sanitized_digest != known:
            other = replace(self.entry, sanitized_tokenizer_sha256=read.sanitized_digest)
            raise self._other_pin(computed_pin(other, self.backend.row))
        return read

    def _held(self) -> ExitStack:
        """Every file of the lane, leased and of the right size."""
        with ExitStack() as leases:
            for file in self._files:
                try:
                    lease = self.blobs.lease(file.sha256)
                except ArtifactInvalid as missing:
                    raise self._wrong(file, self._stat(file)) from missing
                leases.callback(lease.release)
                size = self._stat(file)
                if size != file.size_bytes:
                    raise self._wrong(file, size)
            return leases.pop_all()

    def _verified(self, file: CatalogFile, limit: int) -> bytes:
        try:
            return read_verified(self.blobs.path(file.sha256), file.path, file.sha256, limit=limit)[0]
        except ArtifactInvalid as fault:
            raise self._wrong(file, self._stat(file), self._digest(file)) from fault

    def _file_at_fault(self, message: str) -> ArtifactInvalid:
        for file in self._files:
            actual = self._digest(file)
            if actual is None or actual.sha256 != file.sha256:
                return self._wrong(file, self._stat(file), actual)
        return artifact_invalid("", f"{message}; the files are those of the catalog, so report it", recovery=RECOVERY)

    def _wrong(self, file: CatalogFile, size: int | None, actual: FileDigest | None = None) -> ArtifactInvalid:
        what = "is missing from the model cache" if size is None else "is damaged in the model cache"
        if actual is None and size is not None:
            actual = self._digest(file)
        return artifact_invalid(
            file.path,
            f"file {file.path!r} of model {self.entry.id!r} {what}; repair it with models.download",
            expected_sha256=file.sha256,
            expected_size=file.size_bytes,
            actual=actual,
            recovery=RECOVERY,
        )

    async def _report(self, error: ArtifactInvalid) -> None:
        sha256 = (error.details or {}).get("expected_sha256")
        if sha256 is not None:
            await self.damage(sha256)

    def _stat(self, file: CatalogFile) -> int | None:
        try:
            return self.blobs.path(file.sha256).stat().st_size
        except OSError:
            return None

    def _digest(self, file: CatalogFile) -> FileDigest | None:
        try:
            return digest_file(self.blobs.path(file.sha256))
        except ArtifactInvalid:
            return None

    @property
    def _files(self) -> tuple[CatalogFile, ...]:
        return self.entry.files_of([self.backend.row.backend])

    def _file(self, role: str) -> CatalogFile | None:
        return next((file for file in self._files if file.role == role), None)


def open_tokenizer(data: bytes, model: RegisteredModel) -> LaneTokenizer:
    """The tokenizer of a lane from the bytes of its file; raises ``InvalidRequest`` for a file that is none."""
    limits = {"max_tokens": model.max_tokens, "vocab_size": model.vocab_size}
    if model.task == "rerank":
        return PairTokenizer.from_json(data, template=model.pair_template, **limits)
    return ModelTokenizer.from_json(data, prompts=model.prompts, rowless_added=model.task == "generate", **limits)


def _engine_of(described: BackendDescription, unpinned: Collection[str]) -> CatalogEngine:
    flags = {name: value for name, value in described.build_flags.items() if name not in unpinned}
    identity = EngineIdentity(described.engine, described.engine_version, flags)
    return CatalogEngine(identity, described.kernel_revision, described.manifest_digest)


async def release_after(worker: Worker, held: ExitStack) -> None:
    """Let go of what is ``held`` once ``worker`` holds the model no more."""
    try:
        await worker.model_gone()
    finally:
        held.close()
