"""Downloads into a cache that is full, read-only or without locks: each found, typed, and over when it is mended."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.collection_rule import Keep
from synapse_host.downloads.fetcher import Fetcher
from synapse_host.downloads.manifest import Manifest, WantedFile
from synapse_host.downloads.room import DownloadRoom
from synapse_host.downloads.sources import Sources
from synapse_host.errors import ArtifactInvalid, DownloadFailed, StoreFailure
from synapse_host.testing.download_room import RunningRoom, running_room
from synapse_host.testing.file_server import FileServer, Plan

pytestmark = pytest.mark.anyio

BODY = os.urandom(3_000_000)
SHA = hashlib.sha256(BODY).hexdigest()
SMALL = b"{}"
MANIFEST = Manifest(
    "tiny",
    "a" * 64,
    (
        WantedFile("config", "config.json", hashlib.sha256(SMALL).hexdigest(), len(SMALL), "/config.json"),
        WantedFile("model", "model.bin", SHA, len(BODY), "/model.bin"),
    ),
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 5 MB of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"this root may not mount a tmpfs: {made.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@asynccontextmanager
async def fetching_room(tmp_path: Path, cache_root: Path) -> AsyncIterator[RunningRoom]:
    """A room that fetches from a real server."""
    with FileServer({"/config.json": SMALL, "/model.bin": BODY}) as server:
        async with running_room(tmp_path / "home", [], cache_root=cache_root) as running:
            fetcher = Fetcher(running.room.cache, Sources(server.url))
            running.source.fetch = fetcher.fetch  # type: ignore[method-assign]
            yield running
            fetcher.close()


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


def left_in(room: DownloadRoom) -> list[str]:
    layout = room.cache.layout
    folders = (layout.blobs, layout.metadata, layout.incoming)
    return [path.name for folder in folders for path in folder.iterdir()]


async def test_a_disk_that_fills_up_is_told_and_loses_nothing(tmp_path: Path, disk: Path) -> None:
    async with fetching_room(tmp_path, disk / "models") as running:
        filler = disk / "filler"
        filler.write_bytes(b"x" * 3_500_000)
        status = await running.download(MANIFEST)
        error = status["error"]
        assert (error["code"], error["class"], error["retry_after_ms"]) == ("download_failed", "transient", 1000)
        assert error["safe_to_retry_same_request"]
        assert error["details"] == {"file": "model.bin", "reason": "storage_full", "http_status": None}
        assert "free disk space" in error["message"]
        assert left_in(running.room) == []
        filler.unlink()
        assert (await running.download(MANIFEST))["state"] == "committed"
        assert running.room.cache.path(SHA).read_bytes() == BODY


async def test_a_disk_that_is_full_from_the_start_is_told(tmp_path: Path, disk: Path) -> None:
    async with fetching_room(tmp_path, disk / "models") as running:
        with (disk / "filler").open("wb", buffering=0) as filler:
            for size in (65_536, 4096, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    continue
        error = (await running.download(MANIFEST))["error"]
        assert (error["code"], error["details"]["reason"]) == ("download_failed", "storage_full")
        (disk / "filler").unlink()
        assert (await running.download(MANIFEST))["state"] == "committed"


async def test_a_body_without_end_leaves_the_store_its_room(tmp_path: Path, disk: Path) -> None:
    """Nobody knows its size: no catalog, and a server that tells none."""
    wanted = WantedFile("file", "endless", SHA, None, "/endless")
    with FileServer() as server:
        server.plan("/endless", Plan(body=bytes(40_000_000), chunked=True))
        cache = BlobCache.open(disk / "models", "host-a")
        fetcher = Fetcher(cache, Sources(server.url))
        with pytest.raises(DownloadFailed, match=r"of a size nobody tells, .* kept for the store") as failed:
            await fetcher.fetch(wanted, owner="host-a/operator", on_bytes=lambda _: None)
        fetcher.close()
    assert failed.value.details == {"file": "endless", "reason": "storage_full", "http_status": None}
    assert list(cache.layout.incoming.iterdir()) == []


async def test_a_body_that_is_too_large_is_refused_before_it_is_written(tmp_path: Path, disk: Path) -> None:
    large = WantedFile("file", "large", SHA, None, "/large")
    with FileServer({"/large": bytes(40_000_000)}) as server:
        cache = BlobCache.open(disk / "models", "host-a")
        fetcher = Fetcher(cache, Sources(server.url))
        come: list[int] = []
        with pytest.raises(DownloadFailed, match=r"the next 40000000 bytes .* kept for the store.*; free disk space"):
            await fetcher.fetch(large, owner="host-a/operator", on_bytes=come.append)
        fetcher.close()
    assert sum(come[-1:]) < 10_000_000, "it was taken although it has no room"


async def test_a_cache_that_became_read_only_is_told(tmp_path: Path, disk: Path) -> None:
    async with fetching_room(tmp_path, disk / "models") as running:
        assert (await running.download(MANIFEST))["state"] == "committed"
        remount(disk, "ro")
        try:
            with pytest.raises(StoreFailure, match="right to write there"):
                await running.room.require_cache()
            await running.room.require_cache(to_write=False)
            with running.room.cache.lease(SHA):
                assert running.room.cache.path(SHA).read_bytes() == BODY
            await running.room.verifier.require("model.bin", SHA, len(BODY))
            there = Manifest("other", "b" * 64, MANIFEST.files)
            assert (await running.download(there))["state"] == "committed", "its content is all here"
            lacking = WantedFile("config", "x.json", hashlib.sha256(b"x").hexdigest(), 1, "/config.json")
            error = (await running.download(Manifest("lacking", "c" * 64, (*MANIFEST.files, lacking))))["error"]
            assert (error["code"], error["class"]) == ("store_failure", "permanent")
            assert str(disk) in error["message"]
            assert "right to write there" in error["message"]
            for catalog_id in ("tiny", "other"):
                assert (await running.room.removal([]).remove(catalog_id)).freed_bytes == 0
        finally:
            remount(disk, "rw")
        assert running.room.cache.path(SHA).read_bytes() == BODY
    async with fetching_room(tmp_path, disk / "models") as after:
        assert after.room.installs.all() == []
        assert after.digests() == []
        assert (await after.download(MANIFEST))["state"] == "committed"


@pytest.fixture
def view(disk: Path, tmp_path: Path) -> Iterator[Path]:
    """The disk's cache as a mount shows it through which nothing can be written."""
    (disk / "models").mkdir()
    seen = tmp_path / "view"
    seen.mkdir()
    subprocess.run(["mount", "--bind", str(disk / "models"), str(seen)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(seen)], check=True)
    yield seen
    subprocess.run(["umount", "-l", str(seen)], check=True)


async def test_a_cache_mounted_read_only_serves_what_another_mount_keeps(
    tmp_path: Path, disk: Path, view: Path
) -> None:
    async with (
        fetching_room(tmp_path / "writer", disk / "models") as writer,
        fetching_room(tmp_path / "reader", view) as reader,
    ):
        error = (await reader.download(MANIFEST))["error"]
        assert error["code"] == "store_failure"
        assert str(view) in error["message"]
        assert (await writer.download(MANIFEST))["state"] == "committed"
        reader.source.fetch = refuse_to_fetch  # type: ignore[method-assign]
        assert (await reader.download(MANIFEST, "again"))["state"] == "committed"
        lease = reader.room.cache.lease(SHA)
        await writer.room.removal([]).remove("tiny")
        for now_ms in (1, 2):
            outcomes = writer.room.cache.collect(now_ms=now_ms, grace_ms=0)
            assert [outcome.verdict for outcome in outcomes] == [Keep("shared_reader_or_gc_active")]
        assert reader.room.cache.path(SHA).read_bytes() == BODY
        lease.release()
        for now_ms in (1, 2):
            writer.room.cache.collect(now_ms=now_ms, grace_ms=0)
        with pytest.raises(ArtifactInvalid, match="download it again"):
            reader.room.cache.lease(SHA)
        with pytest.raises(ArtifactInvalid):
            await reader.room.verifier.require("model.bin", SHA, len(BODY))
        assert not any(install.valid for install in reader.room.installs.all())


async def test_damaged_content_of_a_read_only_cache_is_told_and_left(tmp_path: Path, disk: Path, view: Path) -> None:
    async with (
        fetching_room(tmp_path / "writer", disk / "models") as writer,
        fetching_room(tmp_path / "reader", view) as reader,
    ):
        await writer.download(MANIFEST)
        await reader.download(MANIFEST)
        writer.room.cache.path(SHA).write_bytes(bytes(len(BODY)))
        with pytest.raises(ArtifactInvalid) as refused:
            await reader.room.verifier.require("model.bin", SHA, len(BODY))
        assert (refused.value.details or {})["actual_size"] == len(BODY)
        assert not any(install.valid for install in reader.room.installs.all())
        assert writer.room.cache.path(SHA).exists()


async def refuse_to_fetch(wanted: WantedFile, **_: object) -> object:
    raise AssertionError(f"{wanted.name} was fetched")


async def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    async with fetching_room(tmp_path, tmp_path / "models") as running:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", no_locks)
            with pytest.raises(StoreFailure, match="no file locks"):
                await running.room.require_cache()
            error = (await running.download(MANIFEST))["error"]
            assert error["code"] == "store_failure"
            assert "no file locks" in error["message"]
        assert (await running.download(MANIFEST))["state"] == "committed"
