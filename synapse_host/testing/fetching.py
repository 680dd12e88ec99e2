"""One fetch of one file into a cache, for tests of the fetcher: what it told, waited for and left behind."""

from __future__ import annotations

import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.fetcher import Fetcher
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.sources import Sources
from synapse_host.errors import ArtifactInvalid, DownloadFailed

#: The one file, a model's weights by their place on the server.
BODY = os.urandom(3_000_000)
SHA = hashlib.sha256(BODY).hexdigest()
PATH = "/org/model/resolve/abc/model.safetensors"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the proxies of the environment away, for the length of a test: its servers are on this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Fetching:
    """One fetch, with what it told and how long it would have waited."""

    def __init__(self, cache: BlobCache, endpoint: str, **changes: Any) -> None:
        self.cache = cache
        self.waits: list[float] = []
        self.told: list[int] = []
        sources = Sources(endpoint, changes.pop("mirror", None), changes.pop("token", None))
        self.idle_s = changes.pop("idle_s", 60.0)
        self.slow_clock = changes.pop("slow_clock", False)
        clock = changes.pop("clock", time.monotonic)
        self.fetcher = Fetcher(
            cache,
            sources,
            idle_s=self.idle_s,
            pause=self._pause,
            clock=(lambda: sum(self.waits)) if self.slow_clock else clock,
            now=lambda: _NOW,
        )
        fields = {"role": "model", "name": "model.safetensors", "sha256": SHA, "size": len(BODY), "source": PATH}
        self.wanted = WantedFile(**{**fields, **changes})

    async def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def run(self) -> None:
        """Fetch the file."""
        try:
            await self.fetcher.fetch(self.wanted, owner="host-a/download/j", on_bytes=self.told.append)
        finally:
            self.fetcher.close()

    async def failure(self) -> DownloadFailed:
        """The transient error the fetch ends in, leaving nothing in the cache."""
        with pytest.raises(DownloadFailed) as refused:
            await self.run()
        assert self.leftovers() == []
        assert (refused.value.error_class, refused.value.retry_after_ms) == ("transient", 1000)
        return refused.value

    async def invalid(self) -> dict[str, Any]:
        """The details of the fetch's refusal of what it got, leaving nothing in the cache."""
        with pytest.raises(ArtifactInvalid) as refused:
            await self.run()
        assert self.leftovers() == []
        assert refused.value.details is not None
        return refused.value.details

    def leftovers(self) -> list[Path]:
        """Whatever lies in the cache."""
        layout = self.cache.layout
        return [*layout.blobs.iterdir(), *layout.incoming.iterdir(), *layout.metadata.iterdir()]

    def arrived(self) -> bool:
        """Whether the file is there, whole and alone."""
        assert not list(self.cache.layout.incoming.iterdir())
        return self.cache.path(SHA).read_bytes() == BODY
