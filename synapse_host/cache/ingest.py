"""Content on its way into the cache: hashed as it is written, and visible under its digest only when it is whole."""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

from synapse_host.cache.disk_reserve import room_of
from synapse_host.cache.durable_files import sync_directory
from synapse_host.cache.layout import CacheLayout, unusable
from synapse_host.cache.locks import change_lock, is_still
from synapse_host.cache.metadata import BlobMetadata, read_metadata, write_metadata
from synapse_host.errors import ArtifactInvalid

_numbers = count(1)
#: Bytes written between two looks at what the disk has left.
_LOOK_BYTES = 1024 * 1024


class Ingest:
    """One file being written; use as a context manager, which removes what was not committed.

    The open file is locked, so that the remains of a host that died can be told from the work of one that lives.
    """

    def __init__(self, layout: CacheLayout) -> None:
        """Begin a file; raises ``StoreFailure``."""
        layout.require_one_disk()
        self._layout = layout
        self._hash = hashlib.sha256()
        #: Bytes written.
        self.size = 0
        self._looked_at = -_LOOK_BYTES
        self._path: Path | None
        self._path, self._descriptor = _locked_file(layout.incoming)

    @property
    def sha256(self) -> str:
        """The digest of what was written so far."""
        return self._hash.hexdigest()

    def require_room(self, wanted: int | None) -> None:
        """See that ``wanted`` more bytes, or any at all, leave the disk what is kept free; raises ``StoreFailure``."""
        try:
            fault = room_of(self._descriptor).fault(wanted)
        except OSError as problem:
            raise unusable(self._layout.incoming, problem) from problem
        if fault is not None:
            raise unusable(self._layout.incoming, fault) from fault

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``; raises ``StoreFailure``, after which the file is no use."""
        view = memoryview(data).cast("B")
        if self.size - self._looked_at >= _LOOK_BYTES:
            self._looked_at = self.size
            self.require_room(None)
        self._hash.update(view)
        self.size += view.nbytes
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as problem:
            raise unusable(self._layout.incoming, problem) from problem

    def flush(self) -> None:
        """Have what was written so far on the disk, so that little is left for ``commit``; raises ``StoreFailure``.

        May run beside ``write``. An error is told once only, by whichever call meets it.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as problem:
            raise unusable(self._layout.incoming, problem) from problem

    def commit(
        self,
        *,
        name: str,
        source_url: str,
        owner: str,
        file_format: str = "unknown",
        expected_sha256: str | None = None,
        expected_size: int | None = None,
        sanitized_tokenizer_digest: str | None = None,
    ) -> BlobMetadata:
        """Make the content visible under its digest, pinned by ``owner``; ``name`` is what messages call it.

        The document is written first: content without one would look like nobody's. Content that was there already is
        replaced, since the new bytes were just hashed and the old ones were not; its pins and their owners stay.

        Raises:
            ArtifactInvalid: digest or size are not those expected; nothing has become visible.
            StoreFailure: the cache cannot be written.

        """
        digest = self._hash.hexdigest()
        self._require(name, digest, expected_sha256, expected_size)
        assert self._path is not None, "committed twice"
        try:
            os.fsync(self._descriptor)
            with change_lock(self._layout):
                described = BlobMetadata(digest, self.size, source_url, file_format, sanitized_tokenizer_digest)
                known = read_metadata(self._layout, digest)
                if known is not None:
                    described = replace(described, pins=known.pins)
                described = described.pinned_by(owner)
                write_metadata(self._layout, described)
                self._path.replace(self._layout.blob(digest))
                self._path = None
                sync_directory(self._layout.blobs)
        except OSError as problem:
            raise unusable(self._layout.root, problem) from problem
        return described

    def close(self) -> None:
        """Give the file up; what was committed stays. Safe to call twice."""
        if self._descriptor >= 0:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Ingest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require(self, name: str, digest: str, expected_sha256: str | None, expected_size: int | None) -> None:
        if expected_sha256 in (None, digest) and expected_size in (None, self.size):
            return
        size = None if expected_size is None else f"{expected_size} bytes"
        expected = " and ".join(filter(None, (size, expected_sha256 and f"sha256 {expected_sha256}")))
        raise ArtifactInvalid(
            f"{name} came with {self.size} bytes and sha256 {digest}, expected: {expected}; "
            "fetch it again, or correct what is expected",
            details={
                "file": name,
                "expected_sha256": expected_sha256,
                "actual_sha256": digest,
                "expected_size": expected_size,
                "actual_size": self.size,
            },
        )


def _locked_file(directory: Path) -> tuple[Path, int]:
    """A new file and its locked descriptor. One that a collection took for abandoned before it was locked is left."""
    try:
        while True:
            path = directory / f"ingest-{os.getpid()}-{next(_numbers)}.tmp"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_still(path, descriptor):
                return path, descriptor
            os.close(descriptor)
    except OSError as problem:
        raise unusable(directory, problem) from problem
