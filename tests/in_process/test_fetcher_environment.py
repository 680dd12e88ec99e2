"""Fetching through proxies and with logins of the environment; what is secret is told to nobody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.testing.fetching import BODY, PATH, Fetching, without_proxies
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


async def test_the_proxy_of_the_environment_is_used(
    server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    fetching = Fetching(cache, "http://models.invalid")
    await fetching.run()
    assert fetching.arrived()
    assert server.seen[0].headers["host"] == "models.invalid"


async def test_no_proxy_is_honoured(server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetching = Fetching(cache, server.url)
    await fetching.run()
    assert fetching.arrived()


async def test_the_token_wins_over_a_login_of_netrc(
    server: FileServer, cache: BlobCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.plan(PATH, Plan(404))
    await Fetching(cache, server.url, token="hf_token").failure()
    await Fetching(cache, server.url).run()
    told = [seen.headers.get("authorization", "") for seen in server.seen]
    assert told[0] == "Bearer hf_token"
    assert told[1].startswith("Basic ")


async def test_secrets_are_in_no_message_and_no_log(
    server: FileServer, cache: BlobCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.plan(PATH, Plan(503), Plan(403))
    endpoint = server.url.replace("http://", "http://me:pass_secret@")
    fetching = Fetching(cache, endpoint, mirror=f"{server.url}/none", token="hf_secret")
    refused = await fetching.failure()
    assert "secret" not in refused.message + caplog.text + repr(fetching.wanted)
    assert server.url in refused.message
