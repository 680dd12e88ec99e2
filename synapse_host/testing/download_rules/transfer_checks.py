"""Checks of single transfers against a real server: size, digest, resuming, silence, waiting, who sees the token."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

import anyio

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.disk_reserve import RESERVE_BYTES, DiskRoom
from synapse_host.downloads import single_files
from synapse_host.downloads.fetcher import Fetcher
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.sources import Sources
from synapse_host.testing.download_rules.registered import check, refusal
from synapse_host.testing.file_server import FileServer, Plan

BODY = os.urandom(300_000)
SHA = hashlib.sha256(BODY).hexdigest()
PATH = "/model.bin"
_DEADLINE_S = 60


class _Fetch:
    """One fetch with its waits told."""

    def __init__(self, folder: Path, endpoint: str, mirror: str | None = None, *, size: int | None = len(BODY)) -> None:
        self.waits: list[float] = []
        self.idle_s = 60.0
        self.clock: Callable[[], float] = anyio.current_time
        self.cache = BlobCache.open(folder / "models", "host")
        self._sources = Sources(endpoint, mirror, "hf_token")
        self._wanted = WantedFile("model", "model.bin", SHA, size, PATH)

    async def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def run(self) -> bool:
        """Whether the file is here, whole."""
        fetcher = Fetcher(self.cache, self._sources, idle_s=self.idle_s, pause=self._pause, clock=self.clock)
        try:
            with anyio.fail_after(_DEADLINE_S):
                await fetcher.fetch(self._wanted, owner="host", on_bytes=lambda count: None)
        finally:
            fetcher.close()
        return self.cache.path(SHA).read_bytes() == BODY

    async def details(self) -> tuple[str, dict[str, object] | None]:
        """Code and details of the refusal; nothing may be left."""
        refused = await refusal(self.run())
        assert self.cache.layout.digests() == []
        return refused.code, refused.details


def _invalid(sha256: str | None, size: int) -> tuple[str, dict[str, object]]:
    return "artifact_invalid", {
        "file": "model.bin",
        "expected_sha256": SHA,
        "actual_sha256": sha256,
        "expected_size": len(BODY),
        "actual_size": size,
        "recovery_op": "models.download",
    }


def _failed(reason: str, status: int | None = None) -> tuple[str, dict[str, object]]:
    return "download_failed", {"file": "model.bin", "reason": reason, "http_status": status}


@check("told_size")
async def a_server_that_tells_another_size(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(length=len(BODY) + 7))
        assert await _Fetch(folder, server.url).details() == _invalid(None, len(BODY) + 7)


@check("received_size")
async def a_body_that_is_longer(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(body=BODY + b"x" * 400_000, chunked=True))
        code, details = await _Fetch(folder, server.url).details()
        assert details is not None
        assert (code, details["actual_sha256"]) == ("artifact_invalid", None)


@check("digest")
async def a_body_of_the_right_size_that_is_another(folder: Path) -> None:
    other = bytes(reversed(BODY))
    with FileServer({PATH: other}) as server:
        found = await _Fetch(folder, server.url).details()
        assert found == _invalid(hashlib.sha256(other).hexdigest(), len(other))


@check("resumed")
async def a_cut_goes_on_where_it_was(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(cut_after=100_000))
        assert await _Fetch(folder, server.url).run()
        assert [seen.headers.get("range") for seen in server.seen] == [None, "bytes=100000-"]


@check("early_end")
async def a_body_without_length_that_ends_early(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(unsized=True, cut_after=100_000))
        assert await _Fetch(folder, server.url).run()


@check("begun_anew")
async def a_range_of_another_place_is_not_appended(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(cut_after=100_000), Plan(shifted=True))
        assert await _Fetch(folder, server.url).run()


@check("silence")
async def a_server_that_goes_silent(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(stall_after=100_000))
        fetching = _Fetch(folder, server.url)
        fetching.idle_s = 0.5
        assert await fetching.details() == _failed("network")


@check("retry_after")
async def a_server_that_names_a_wait(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(503, {"Retry-After": "0"}))
        fetching = _Fetch(folder, server.url)
        assert await fetching.run()
        assert fetching.waits == [0.0]


@check("given_up")
async def a_server_that_stays_in_trouble(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, *[Plan(503, {"Retry-After": "0"})] * 5)
        assert await _Fetch(folder, server.url).details() == _failed("http_status", 503)


@check("refusal_final")
async def a_server_that_refuses(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server:
        server.plan(PATH, Plan(403))
        assert await _Fetch(folder, server.url).details() == _failed("http_status", 403)


@check("mirror_first")
async def a_mirror_is_asked_first(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server, FileServer({PATH: BODY}) as mirror:
        assert await _Fetch(folder, server.url, mirror.url).run()
        assert (len(server.seen), len(mirror.seen)) == (0, 1)


@check("slow_left")
async def a_mirror_that_drips(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server, FileServer() as mirror:
        mirror.plan(PATH, Plan(body=BODY, chunked=True, piece=1_000))
        fetching = _Fetch(folder, server.url, mirror.url)
        fetching.clock = count().__next__
        assert await fetching.run()
        assert len(server.seen) == 1


@check("slow_left", "given_up")
async def a_mirror_that_is_cut_over_and_over(folder: Path) -> None:
    with FileServer({PATH: BODY}) as server, FileServer({PATH: BODY}) as mirror:
        mirror.plan(PATH, *[Plan(cut_after=50)] * 10)
        assert await _Fetch(folder, server.url, mirror.url).run()
        assert len(server.seen) == 1


@check("token_at_home")
async def the_token_stays_with_the_endpoint(folder: Path) -> None:
    with FileServer() as server, FileServer({"/elsewhere": BODY}) as network:
        server.plan(PATH, Plan(302, {"Location": f"{network.url}/elsewhere"}))
        assert await _Fetch(folder, server.url).run()
        assert server.seen[0].headers.get("authorization") == "Bearer hf_token"
        assert "authorization" not in network.seen[0].headers


@check("address_pinned")
async def an_address_without_a_digest(folder: Path) -> None:
    async def asked() -> bool:
        return single_files.is_pinned_address("https://hub.example/model.bin", None)

    refused = await refusal(asked())
    assert (refused.code, refused.details) == ("invalid_request", {"source_url": "https://hub.example/model.bin"})


@check("branch_refused", "address_pinned")
async def an_address_of_a_branch(folder: Path) -> None:
    async def asked() -> bool:
        return single_files.is_pinned_address("https://hub.example/o/m/resolve%2Fmain/model.bin", SHA)

    assert (await refusal(asked())).code == "invalid_request"


@check("room_kept")
async def a_file_the_disk_has_no_room_for(folder: Path) -> None:
    room = DiskRoom(RESERVE_BYTES + len(BODY) - 1, 100 * RESERVE_BYTES)
    with FileServer({PATH: BODY}) as server, patch("synapse_host.cache.ingest.room_of", lambda descriptor: room):
        assert await _Fetch(folder, server.url).details() == _failed("storage_full")
