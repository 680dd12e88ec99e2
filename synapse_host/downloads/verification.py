"""Whether cached content is what its digest says: hashed once, believed while its file stays as it was.

What a file looked like when it was hashed is kept in the store. Anything that writes to the file, or puts another in
its place, changes that, and it is hashed again. Workers hash what they map all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import anyio.to_thread

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.failures import artifact_invalid
from synapse_host.downloads.installs import Installs
from synapse_host.model_files.source_files import FileDigest
from synapse_host.store.download_tables import FileVerificationRow
from synapse_host.store.install_store import InstallStore

_log = logging.getLogger(__name__)


class FileFacts(NamedTuple):
    """What tells one state of a file from another without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class ContentVerifier:
    """Verifies content of the cache and takes damaged content out of use."""

    def __init__(self, cache: BlobCache, store: InstallStore, installs: Installs, now_ms: Callable[[], int]) -> None:
        self._cache = cache
        self._store = store
        self._installs = installs
        self._now_ms = now_ms

    async def require(self, name: str, sha256: str, size: int | None) -> None:
        """Return where the content is here and whole; ``name`` is what messages call it.

        Damaged content goes into quarantine, and the installs it is a member of are no longer valid; nothing else is
        touched.

        Raises:
            ArtifactInvalid: it is missing or damaged; details as the wire contract says, ``recovery_op`` included.
            StoreFailure: the cache or the store cannot be read or written.

        """
        facts = await anyio.to_thread.run_sync(self._facts, sha256)
        if facts is not None and facts.size == (facts.size if size is None else size):
            known = await self._store.verification(sha256)
            if known is not None and _facts_of(known) == facts:
                return
        found = await self._hashed(sha256)
        if found is None or found.sha256 != sha256:
            await self._withdraw(sha256)
        if found is None or found.sha256 != sha256 or size not in (None, found.size):
            raise artifact_invalid(
                name,
                expected_sha256=sha256,
                actual_sha256=found.sha256 if found else None,
                expected_size=size,
                actual_size=found.size if found else None,
            )

    async def doubt(self, sha256: str) -> None:
        """Look at content that somebody found missing or damaged; what is whole after all stays in use.

        Raises:
            StoreFailure: the cache or the store cannot be read or written.

        """
        found = await self._hashed(sha256)
        if found is None or found.sha256 != sha256:
            await self._withdraw(sha256)

    async def note(self, sha256: str) -> None:
        """Believe content that was hashed as it was written."""
        facts = await anyio.to_thread.run_sync(self._facts, sha256)
        if facts is not None:
            await self._save(sha256, facts)

    async def _hashed(self, sha256: str) -> FileDigest | None:
        before = await anyio.to_thread.run_sync(self._facts, sha256)
        found = await anyio.to_thread.run_sync(self._cache.audit, sha256)
        after = await anyio.to_thread.run_sync(self._facts, sha256)
        if found is not None and found.sha256 == sha256 and before is not None and before == after:
            await self._save(sha256, before)
        return found

    async def _save(self, sha256: str, facts: FileFacts) -> None:
        row = FileVerificationRow(sha256=sha256, verified_ms=self._now_ms(), **facts._asdict())
        await self._store.save_verification(row)

    async def _withdraw(self, sha256: str) -> None:
        hit = self._installs.invalidate(sha256)
        for install in hit:
            _log.error(
                "content %s is missing or damaged, and with it the install of %s; call models.download to repair it",
                sha256,
                install.catalog_id,
            )
        await self._store.invalidate([(install.catalog_id, install.manifest_digest) for install in hit], sha256)

    def _facts(self, sha256: str) -> FileFacts | None:
        try:
            facts = self._cache.path(sha256).lstat()
        except FileNotFoundError:
            return None
        return FileFacts(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _facts_of(row: FileVerificationRow) -> FileFacts:
    return FileFacts(row.device, row.inode, row.size, row.mtime_ns, row.ctime_ns)
