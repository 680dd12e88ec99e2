"""Servers that lead to no server, send headers no header may be, or what no entry of the catalog asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.testing.fetching import BODY, PATH, Fetching, without_proxies
from synapse_host.testing.file_server import FileServer, Plan

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    without_proxies(monkeypatch)
    with FileServer({PATH: BODY}) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache.open(tmp_path / "models", "host-a")


NOWHERE = [
    "http://:99999/x",
    "http://127.0.0.1:99999/x",
    "http://a..b/x",
    f"http://{'a' * 300}.example/x",
    "http://a:b:c/",
]


@pytest.mark.parametrize("place", NOWHERE)
async def test_a_redirect_to_what_no_resolver_takes_is_the_servers_fault(
    server: FileServer, cache: BlobCache, place: str
) -> None:
    server.plan(PATH, Plan(302, {"Location": place}))
    refused = await Fetching(cache, server.url).failure()
    assert refused.details == {"file": "model.safetensors", "reason": "network", "http_status": None}
    assert server.url in refused.message


async def test_a_tag_that_no_header_may_hold_is_not_sent_back(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(headers={"ETag": '"\x01\x7f"'}, cut_after=1_200_000))
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()
    assert [("range" in seen.headers, "if-range" in seen.headers) for seen in server.seen] == [
        (False, False),
        (True, False),
    ]


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 01 Jan 2024 99999999999999999999:00:00 GMT"]
)
async def test_a_time_past_every_calendar_is_no_time(server: FileServer, cache: BlobCache, date: str) -> None:
    server.plan(PATH, Plan(503, {"Retry-After": date}))
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()


async def test_a_file_of_no_entry_is_brought_back_by_no_download(server: FileServer, cache: BlobCache) -> None:
    server.plan(PATH, Plan(body=b"sorry"))
    fetching = Fetching(cache, server.url, size=None)
    details = await fetching.invalid()
    assert (details["expected_size"], details["recovery_op"]) == (None, None)
