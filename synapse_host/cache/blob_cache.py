"""The model cache: content by digest, shared by every host of the user that names the same directory.

All calls block on the disk, and some on a lock that another process holds for milliseconds; an event loop runs them in
a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from synapse_host.cache.collection import Outcome, collect, release, sweep
from synapse_host.cache.collection_rule import CacheEntry, over_watermark
from synapse_host.cache.derived import DerivedClaim, claim, derived_bytes
from synapse_host.cache.durable_files import sync_directory
from synapse_host.cache.ingest import Ingest
from synapse_host.cache.layout import CacheLayout, is_unwritable, read_digest, unusable
from synapse_host.cache.locks import ReadLease, change_lock
from synapse_host.cache.metadata import BlobMetadata, read_metadata, write_metadata
from synapse_host.errors import ArtifactInvalid, InvalidRequest, StoreFailure
from synapse_host.model_files.source_files import FileDigest, digest_file

_log = logging.getLogger(__name__)


class BlobCache:
    """One cache as one host sees it; ``owner`` names this host's pins.

    Where it is not ``writable`` what is in it is read and held, and no pin is written or taken back: who writes by
    another mount keeps it, and may remove what nobody reads or pins.
    """

    def __init__(self, layout: CacheLayout, owner: str) -> None:
        self.layout = layout
        self.owner = owner
        self.writable = True

    @classmethod
    def open(cls, root: Path, owner: str) -> BlobCache:
        """Open or make the cache at ``root``; raises ``StoreFailure``."""
        layout = CacheLayout(root)
        layout.prepare()
        return cls(layout, owner)

    def ingest(self) -> Ingest:
        """Begin to write content; raises ``StoreFailure``."""
        return Ingest(self.layout)

    def find(self, digest: str) -> BlobMetadata | None:
        """What is known of ``digest``; None where the content is not here or was found damaged."""
        digest = read_digest(digest)
        metadata = read_metadata(self.layout, digest)
        return metadata if metadata is not None and self._is_whole(metadata) else None

    def lease(self, digest: str) -> ReadLease:
        """Hold ``digest`` for reading; its content is at ``path(digest)`` until the lease is released.

        Raises:
            ArtifactInvalid: the content is not here, or was found damaged; details ``digest``.
            StoreFailure: the cache cannot be read.

        """
        digest = read_digest(digest)
        lease = ReadLease(self.layout, digest)
        try:
            metadata = self.find(digest)
            if metadata is None:
                raise ArtifactInvalid(
                    f"content {digest} is not in the model cache at {self.layout.root}, or was found damaged; "
                    "download it again",
                    details={"digest": digest},
                )
            self._require_size(metadata)
        except BaseException:
            lease.release()
            raise
        return lease

    def path(self, digest: str) -> Path:
        """Where the content of ``digest`` lies."""
        return self.layout.blob(read_digest(digest))

    def pin(self, digest: str, owner: str | None = None) -> BlobMetadata:
        """Keep ``digest`` from collection until its owner unpins it; a mark to go is taken back.

        Raises:
            InvalidRequest: there is no such content; details ``digest``.
            StoreFailure: the cache cannot be written.

        """
        digest = read_digest(digest)

        def present(metadata: BlobMetadata | None) -> BlobMetadata:
            if metadata is None or not self._is_whole(metadata):
                raise InvalidRequest(
                    f"digest {digest} has no content in the model cache at {self.layout.root}; download it first",
                    details={"digest": digest},
                )
            return metadata

        def pinned(metadata: BlobMetadata | None) -> BlobMetadata:
            return present(metadata).pinned_by(owner or self.owner)

        if not self.writable:
            return present(read_metadata(self.layout, digest))
        changed = self._change(digest, pinned)
        assert changed is not None
        return changed

    def describe(self, digest: str, *, file_format: str, sanitized_tokenizer_digest: str | None) -> None:
        """Say what content is; ``unknown`` and None say nothing. Raises ``StoreFailure``."""

        def described(metadata: BlobMetadata | None) -> BlobMetadata | None:
            if metadata is None:
                return None
            kind = metadata.format if file_format == "unknown" else file_format
            tokenizer = sanitized_tokenizer_digest or metadata.sanitized_tokenizer_digest
            return replace(metadata, format=kind, sanitized_tokenizer_digest=tokenizer)

        self._change(read_digest(digest), described)

    def unpin(self, digest: str, owner: str | None = None) -> None:
        """Take the owner's pin back, whatever became of the content; other pins stay. Raises ``StoreFailure``."""
        owner = owner or self.owner
        if self.writable:
            self._change(read_digest(digest), lambda metadata: metadata.unpinned_by(owner) if metadata else None)

    def claim_derived(self, source: str, toolchain: Mapping[str, Any]) -> DerivedClaim | None:
        """The folder of what ``toolchain`` makes of ``source``, for one worker at a time; see ``derived.claim``."""
        return claim(self.layout, read_digest(source), toolchain)

    def release(self, digest: str, owner: str, *, remove: bool) -> int:
        """Take the owner's pin back; with ``remove`` the content goes too where nobody pins or reads it. Freed bytes.

        Raises ``StoreFailure``.
        """
        return release(self.layout, read_digest(digest), owner, remove=remove) if self.writable else 0

    def sweep(self) -> None:
        """Remove what hosts that died left half written; raises ``StoreFailure``."""
        sweep(self.layout)

    def pins(self) -> list[tuple[str, str]]:
        """Every digest with each of its owners; raises ``StoreFailure``."""
        documents = (read_metadata(self.layout, digest) for digest in self.layout.digests())
        return [(found.digest, owner) for found in documents if found is not None for owner in found.pins]

    def collect(self, *, now_ms: int, grace_ms: int, digest: str | None = None) -> list[Outcome]:
        """Mark and remove what nobody pins, all of it or one digest.

        Raises:
            InvalidRequest: nothing is known of that digest; details ``digest``.
            StoreFailure: the cache cannot be read or written.

        """
        digests = None if digest is None else [self._known(read_digest(digest))]
        return collect(self.layout, owner=self.owner, now_ms=now_ms, grace_ms=grace_ms, digests=digests)

    def over_watermark(self, limit_bytes: int) -> list[str]:
        """Unpinned digests to give up so that the cache takes ``limit_bytes`` at most, least recently read first.

        What was made of content counts too, and goes with it. Raises ``StoreFailure``.
        """
        try:
            entries = [entry for digest in self.layout.digests() if (entry := self._entry(digest))]
            return over_watermark(entries, limit_bytes - derived_bytes(self.layout))
        except OSError as problem:
            raise unusable(self.layout.root, problem) from problem

    def verify(self, digest: str) -> bool:
        """Hash the content; False where it is not here, or not what its name says. Raises what ``audit`` raises."""
        found = self.audit(digest)
        return found is not None and found.sha256 == read_digest(digest)

    def audit(self, digest: str) -> FileDigest | None:
        """Hash the content of ``digest``: what it really is, None where it is not here.

        What is not what its name says goes into quarantine, and what is no file at all.

        Raises:
            ArtifactInvalid: the content cannot be read.
            StoreFailure: the cache cannot be written.

        """
        digest = read_digest(digest)
        with ReadLease(self.layout, digest):
            path = self.layout.blob(digest)
            if not path.exists():
                return None
            inode = path.stat().st_ino
            if not path.is_file():
                self._quarantine(digest, inode)
                return None
            found = digest_file(path)
            if found.sha256 != digest:
                self._quarantine(digest, inode)
        return found

    def _quarantine(self, digest: str, inode: int) -> None:
        """Set the content aside, unless another host put a new file in its place since it was hashed."""
        try:
            with change_lock(self.layout):
                path = self.layout.blob(digest)
                if not path.exists() or path.stat().st_ino != inode:
                    return
                metadata = read_metadata(self.layout, digest)
                if metadata is not None:
                    write_metadata(self.layout, replace(metadata, valid=False))
                path.rename(self._free_name(digest))
                sync_directory(self.layout.blobs)
        except OSError as problem:
            raise unusable(self.layout.root, problem) from problem
        except StoreFailure as failure:
            if not is_unwritable(failure):
                raise
            _log.warning("damaged content %s stays where it is: %s", digest, failure.message)

    def _free_name(self, digest: str) -> Path:
        names = (self.layout.quarantine / f"{digest}.{number}" for number in count(1))
        return next(name for name in names if not name.exists())

    def _known(self, digest: str) -> str:
        if not self.layout.blob(digest).exists() and read_metadata(self.layout, digest) is None:
            raise InvalidRequest(
                f"digest {digest} has no content in the model cache at {self.layout.root}; correct it",
                details={"digest": digest},
            )
        return digest

    def _is_whole(self, metadata: BlobMetadata) -> bool:
        return metadata.valid and self.layout.blob(metadata.digest).is_file()

    def _change(self, digest: str, change: Callable[[BlobMetadata | None], BlobMetadata | None]) -> BlobMetadata | None:
        """Replace the document of ``digest`` by what ``change`` makes of it, with nobody changing it in between."""
        try:
            with change_lock(self.layout):
                metadata = read_metadata(self.layout, digest)
                changed = change(metadata)
                if changed is not None and changed != metadata:
                    write_metadata(self.layout, changed)
                return changed
        except OSError as problem:
            raise unusable(self.layout.root, problem) from problem

    def _entry(self, digest: str) -> CacheEntry | None:
        """The content as the watermark sees it; None where there is none, or none any more."""
        metadata = self.find(digest)
        if metadata is None:
            return None
        for path in (self.layout.lease_file(digest), self.layout.blob(digest)):
            # No lock is held: whoever shares the cache may give either up meanwhile.
            with suppress(FileNotFoundError):
                used_ms = path.stat().st_mtime_ns // 1_000_000
                return CacheEntry(digest, metadata.size, used_ms, bool(metadata.pins))
        return None

    def _require_size(self, metadata: BlobMetadata) -> None:
        size = self.layout.blob(metadata.digest).stat().st_size
        if size != metadata.size:
            raise ArtifactInvalid(
                f"content {metadata.digest} in the model cache has {size} bytes, not {metadata.size}; "
                "verify the cache, then download it again",
                details={"digest": metadata.digest, "expected_size": metadata.size, "actual_size": size},
            )
