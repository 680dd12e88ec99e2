"""Fetches files into the cache. The HTTP client is imported by the first fetch: most hosts never need it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.patience import AS_THE_LAST, WITH_ANOTHER
from synapse_host.downloads.sources import Sources
from synapse_host.downloads.transfer import Transfer, TransferRules
from synapse_host.errors import ArtifactInvalid, DownloadFailed
from synapse_host.time_limits import TimeLimits

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

#: Seconds without a byte of the body that end a download (wire contract, ``models.download``).
IDLE_S = 60.0
#: What the client buffers before it stops reading from the socket.
_BUFFER_BYTES = 1024 * 1024


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Fetcher:
    """Fetches single files. ``pause``, ``clock`` and ``now`` stand for the passing of time."""

    def __init__(
        self,
        cache: BlobCache,
        sources: Sources,
        *,
        idle_s: float = IDLE_S,
        pause: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._rules = TransferRules(idle_s, TimeLimits(), pause, clock, now, AS_THE_LAST)

    async def fetch(self, wanted: WantedFile, *, owner: str, on_bytes: Callable[[int], None]) -> BlobMetadata:
        """Fetch ``wanted`` and pin it by ``owner``. ``on_bytes`` is told how much of the file is here.

        The mirror is asked first; what it cannot give, or hardly gives, comes from the endpoint. Nothing becomes
        visible in the cache unless size and digest are those wanted. Cancelling leaves nothing behind.

        Raises:
            DownloadFailed: the network, the server or a full disk; details as the wire contract says.
            ArtifactInvalid: what came is not what is wanted; details likewise.
            StoreFailure: the cache cannot be written for another reason.

        """
        *mirrors, last = self._sources.addresses(wanted.source)
        hurried = replace(self._rules, patience=WITH_ANOTHER)
        async with _session() as session:
            for address in mirrors:
                try:
                    return await Transfer(self._cache, session, wanted, address, hurried, on_bytes).run(owner)
                except (DownloadFailed, ArtifactInvalid) as refusal:
                    if refusal.details and refusal.details.get("reason") == "storage_full":
                        raise
                    _log.warning("%s; asking %s instead", refusal.message, last.shown)
                    on_bytes(0)
            return await Transfer(self._cache, session, wanted, last, self._rules, on_bytes).run(owner)

    def close(self) -> None:
        """Take the timer of the idle limit back; for the end of the event loop."""
        self._rules.limits.close()


def _session() -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        # Proxies of the environment and logins of ~/.netrc, as every other program honours them.
        trust_env=True,
        # A file is wanted as it is: its digest is that of the plain bytes.
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "synapse-host"},
        # Signed addresses of a content network must arrive as they were signed.
        requote_redirect_url=False,
        # No total limit: the transfer watches for silence itself.
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_BUFFER_BYTES,
    )
