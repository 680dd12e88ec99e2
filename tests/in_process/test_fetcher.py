"""Fetching from a real HTTP server that stalls, cuts, lies, redirects and refuses: what arrives, what is said."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.ingest import Ingest
from synapse_host.errors import StoreFailure
from synapse_host.testing.fetching import BODY, PATH, SHA, Fetching, without_proxies
from synapse_host.testing.file_server import FileServer, Plan

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({PATH: BODY}) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache.open(tmp_path / "models", "host-a")


def failed(reason: str, status: int | None = None) -> dict[str, Any]:
    return {"file": "model.safetensors", "reason": reason, "http_status": status}


async def test_a_file_arrives_whole_pinned_and_counted(server: FileServer, cache: BlobCache) -> None:
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()
    assert fetching.told == sorted(fetching.told)
    assert fetching.told[-1] == len(BODY)
    found = cache.find(SHA)
    assert found is not None
    assert (found.pins, found.source_url, found.format) == (
        ("host-a/download/j",),
        server.url + PATH,
        "safetensors",
    )
    (seen,) = server.requests(PATH)
    assert seen.headers["accept-encoding"] == "identity"
    assert "authorization" not in seen.headers


async def test_bytes_are_hashed_and_written_while_the_disk_takes_what_came_before(
    server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synapse_host.downloads.transfer.FLUSH_BYTES", 100_000)
    server.files[PATH] = body = os.urandom(10_000_000)
    later, real = threading.Event(), Ingest.flush

    def slow(ingest: Ingest) -> None:
        if not later.wait(60):
            raise OSError(errno.EIO, "everything waited for the disk")
        real(ingest)

    monkeypatch.setattr(Ingest, "flush", slow)
    fetching = Fetching(cache, server.url, sha256=hashlib.sha256(body).hexdigest(), size=len(body))
    written = Ingest.write

    def noted(ingest: Ingest, data: bytes | memoryview) -> None:
        written(ingest, data)
        if ingest.size > 8_000_000:
            later.set()

    monkeypatch.setattr(Ingest, "write", noted)
    await fetching.run()
    assert cache.path(fetching.wanted.sha256 or "").stat().st_size == len(body)


async def test_an_empty_file_and_one_of_unknown_size_arrive(server: FileServer, cache: BlobCache) -> None:
    server.files["/empty"] = b""
    await Fetching(cache, server.url, source="/empty", size=0, sha256=hashlib.sha256(b"").hexdigest()).run()
    server.plan(PATH, Plan(chunked=True))
    fetching = Fetching(cache, server.url, size=None)
    await fetching.run()
    assert fetching.arrived()


async def test_a_cut_goes_on_where_it_was(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(cut_after=1_500_000), Plan(cut_after=1_000_000))
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()
    first, second, third = server.requests(PATH)
    assert "range" not in first.headers
    assert second.headers["range"] == "bytes=1500000-"
    assert third.headers["range"] == "bytes=2500000-"
    assert second.headers["if-range"].startswith('"')
    assert fetching.waits == [0.5, 0.5]


@pytest.mark.parametrize(
    "answer",
    [Plan(no_ranges=True), Plan(headers={"ETag": '"changed"'}), Plan(shifted=True), Plan(status=416)],
    ids=["200 for a range", "another entity tag", "another range", "416"],
)
async def test_a_server_that_cannot_go_on_sends_the_file_anew(
    server: FileServer, cache: BlobCache, answer: Plan
) -> None:
    server.plan(PATH, Plan(cut_after=1_500_000), answer)
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()
    assert 0 in fetching.told


@pytest.mark.parametrize("size", [len(BODY), None], ids=["size known", "size told by the rest"])
async def test_a_body_without_length_that_ends_early_goes_on(
    server: FileServer, cache: BlobCache, size: int | None
) -> None:
    first = Plan(unsized=True, cut_after=1_500_000) if size else Plan(cut_after=1_500_000)
    server.plan(PATH, first, Plan(unsized=True, cut_after=1_000_000), Plan(unsized=True))
    fetching = Fetching(cache, server.url, size=size)
    await fetching.run()
    assert fetching.arrived()
    assert [seen.headers.get("range") for seen in server.requests(PATH)] == [None, "bytes=1500000-", "bytes=2500000-"]


async def test_a_body_without_length_that_always_ends_early_is_a_cut_not_damage(
    server: FileServer, cache: BlobCache
) -> None:
    server.plan(PATH, *[Plan(unsized=True, body=b"sorry")] * 7)
    refused = await Fetching(cache, server.url).failure()
    assert refused.details == failed("network")
    assert len(server.requests(PATH)) == 6


async def test_a_server_that_is_cut_in_one_place_and_knows_no_ranges_is_given_up(
    server: FileServer, cache: BlobCache
) -> None:
    server.plan(PATH, *[Plan(cut_after=1_000_000), Plan(status=416)] * 10)
    assert (await Fetching(cache, server.url).failure()).details == failed("network")
    assert len(server.requests(PATH)) == 6


async def test_an_endless_run_of_attempts_without_a_byte_ends(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(cut_after=1_000_000), *[Plan(cut_after=0)] * 5)
    fetching = Fetching(cache, server.url)
    assert (await fetching.failure()).details == failed("network")
    assert fetching.waits == [0.5, 0.5, 1.0, 2.0, 4.0]
    assert len(server.requests(PATH)) == 6


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_in_trouble_is_asked_again_when_it_says(
    server: FileServer, cache: BlobCache, status: int
) -> None:
    date = "Thu, 01 Jan 2026 00:00:40 GMT"
    server.plan(PATH, Plan(status, {"Retry-After": "7"}), Plan(status, {"Retry-After": date}), Plan(status))
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()
    assert fetching.waits == [7.0, 40.0, 2.0]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_stays_in_trouble_is_given_up(server: FileServer, cache: BlobCache, status: int) -> None:
    server.plan(PATH, *[Plan(status)] * 5)
    fetching = Fetching(cache, server.url)
    assert (await fetching.failure()).details == failed("http_status", status)
    assert len(fetching.waits) == 4


async def test_waiting_for_the_server_counts_as_silence(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, *[Plan(503, {"Retry-After": "40"})] * 2)
    fetching = Fetching(cache, server.url, idle_s=60.0, slow_clock=True)
    assert (await fetching.failure()).details == failed("http_status", 503)
    assert fetching.waits == [40.0]
    server.plan(PATH, *[Plan(503, {"Retry-After": "40"}), Plan(cut_after=1_000_000)] * 3)
    again = Fetching(cache, server.url, idle_s=60.0, slow_clock=True)
    await again.run()
    assert again.arrived()
    assert again.waits == [40.0, 0.5, 40.0, 0.5, 40.0]


async def test_a_wait_past_a_minute_is_the_callers(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(429, {"Retry-After": "61"}))
    fetching = Fetching(cache, server.url)
    assert (await fetching.failure()).details == failed("http_status", 429)
    assert fetching.waits == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416, 418, 501])
async def test_a_refusal_is_final_and_names_status_and_remedy(
    server: FileServer, cache: BlobCache, status: int
) -> None:
    server.plan(PATH, Plan(status))
    fetching = Fetching(cache, server.url)
    refused = await fetching.failure()
    assert refused.details == failed("http_status", status)
    assert str(status) in refused.message
    assert ("HF_TOKEN" in refused.message) == (status < 500)
    assert len(server.requests(PATH)) == 1


@pytest.mark.parametrize("plan", [Plan(stall_after=0), Plan(stall_after=1_200_000), Plan(no_answer=True)])
async def test_silence_ends_the_download(server: FileServer, cache: BlobCache, plan: Plan) -> None:
    server.plan(PATH, plan)
    fetching = Fetching(cache, server.url, idle_s=1.5)
    refused = await fetching.failure()
    assert refused.details == failed("network")
    assert "sent nothing for 1.5 s" in refused.message
    assert len(server.requests(PATH)) == 1


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 10 * len(BODY)])
async def test_a_server_that_tells_another_length_is_not_read(
    server: FileServer, cache: BlobCache, length: int
) -> None:
    server.plan(PATH, Plan(length=length))
    fetching = Fetching(cache, server.url)
    assert await fetching.invalid() == {
        "file": "model.safetensors",
        "expected_sha256": SHA,
        "actual_sha256": None,
        "expected_size": len(BODY),
        "actual_size": length,
        "recovery_op": "models.download",
    }
    assert fetching.told == []


@pytest.mark.parametrize(
    ("body", "known"),
    [(BODY[:-1], True), (b"\0" * len(BODY), True), (BODY + b"x" * 100, False), (b"", True)],
    ids=["short", "zeros", "long", "empty"],
)
async def test_what_is_not_what_is_wanted_never_shows(
    server: FileServer, cache: BlobCache, body: bytes, known: bool
) -> None:
    server.plan(PATH, Plan(body=body, chunked=True))
    details = await Fetching(cache, server.url).invalid()
    assert details["actual_sha256"] == (hashlib.sha256(body).hexdigest() if known else None)
    assert details["expected_sha256"] == SHA
    assert details["actual_size"] == len(body) if known else details["actual_size"] > len(BODY)


async def test_redirects_are_followed_and_the_token_stays_at_home(server: FileServer, cache: BlobCache) -> None:
    with FileServer({"/signed": BODY}) as network:
        server.plan(PATH, Plan(302, {"Location": "/moved?x=1"}))
        server.plan("/moved", Plan(307, {"Location": f"{network.url}/signed?sig=a%2Fb"}))
        fetching = Fetching(cache, server.url, token="hf_secret")
        await fetching.run()
        assert fetching.arrived()
        assert [seen.headers.get("authorization") for seen in server.seen] == ["Bearer hf_secret"] * 2
        assert [seen.headers.get("authorization") for seen in network.seen] == [None]


async def test_a_circle_of_redirects_ends(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, *[Plan(302, {"Location": f"{PATH}?signature=secret"})] * 30)
    refused = await Fetching(cache, server.url).failure()
    assert refused.details == failed("network")
    assert refused.message.endswith("redirects without end; check downloads.endpoint")


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://hub/file", "http://[half"])
async def test_a_redirect_to_what_is_no_web_address_is_named(server: FileServer, cache: BlobCache, place: str) -> None:
    server.plan(PATH, Plan(302, {"Location": f"{place}?signature=secret"}))
    refused = await Fetching(cache, server.url).failure()
    assert refused.details == failed("network")
    assert f"redirects to {place}, which is no web address; check downloads.endpoint" in refused.message


async def test_nobody_listens(cache: BlobCache) -> None:
    with FileServer() as gone:
        url = gone.url
    fetching = Fetching(cache, url)
    refused = await fetching.failure()
    assert refused.details == failed("network")
    assert url in refused.message
    assert f"no connection to {url.removeprefix('http://')} (" in refused.message
    assert len(fetching.waits) == 4


async def test_a_server_that_the_caller_named_is_no_matter_of_settings(server: FileServer, cache: BlobCache) -> None:
    with FileServer() as other:
        refused = await Fetching(cache, server.url, source=f"{other.url}/a").failure()
    assert refused.message.endswith("answered with HTTP status 404; check the address")


async def test_the_mirror_is_asked_first_and_without_the_token(server: FileServer, cache: BlobCache) -> None:
    with FileServer({PATH: BODY}) as mirror:
        fetching = Fetching(cache, server.url, mirror=f"{mirror.url}/", token="hf_secret")
        await fetching.run()
        assert fetching.arrived()
        assert server.seen == []
        assert "authorization" not in mirror.seen[0].headers


@pytest.mark.parametrize(
    "plan",
    [Plan(404), Plan(body=b"\0" * len(BODY)), Plan(body=b"sorry"), Plan(302, {"Location": "http://:99999/"})],
)
async def test_what_the_mirror_cannot_give_comes_from_the_endpoint(
    server: FileServer, cache: BlobCache, plan: Plan
) -> None:
    with FileServer({}) as mirror:
        mirror.plan(PATH, plan)
        fetching = Fetching(cache, server.url, mirror=mirror.url)
        await fetching.run()
        assert fetching.arrived()


async def test_a_mirror_that_is_cut_over_and_over_is_left(server: FileServer, cache: BlobCache) -> None:
    with FileServer({PATH: BODY}) as mirror:
        mirror.plan(PATH, Plan(cut_after=1_000_000), *[Plan(cut_after=50)] * 10)
        fetching = Fetching(cache, server.url, mirror=mirror.url)
        await fetching.run()
        assert fetching.arrived()
        assert (len(mirror.seen), len(server.seen)) == (6, 1)


async def test_a_mirror_that_drips_is_left(server: FileServer, cache: BlobCache) -> None:
    with FileServer() as mirror:
        mirror.plan(PATH, Plan(body=BODY, chunked=True, piece=5_000))
        # A second passes with every look.
        fetching = Fetching(cache, server.url, mirror=mirror.url, clock=count().__next__)
        await fetching.run()
        assert fetching.arrived()
        assert len(server.seen) == 1


async def test_the_only_source_is_not_left_for_being_slow(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, *[Plan(cut_after=50)] * 10, Plan(chunked=True, piece=5_000))
    fetching = Fetching(cache, server.url, clock=count().__next__)
    await fetching.run()
    assert fetching.arrived()


async def test_a_full_disk_is_said_as_such(
    server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    fetching = Fetching(cache, server.url, mirror=server.url)
    monkeypatch.setattr("synapse_host.cache.ingest.os.write", full)
    refused = await fetching.failure()
    assert refused.details == failed("storage_full")
    assert len(server.seen) == 1, "another source does not make the disk larger"


async def test_a_cache_that_cannot_be_written_is_a_store_failure(
    server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("synapse_host.cache.ingest.os.open", denied)
    with pytest.raises(StoreFailure, match="right to write there"):
        await Fetching(cache, server.url).run()


async def test_cancelling_leaves_nothing(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(stall_after=1_200_000))
    fetching = Fetching(cache, server.url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fetching.run)
        assert await anyio.to_thread.run_sync(server.stalled.wait, 60)
        tasks.cancel_scope.cancel()
    assert fetching.leftovers() == []
