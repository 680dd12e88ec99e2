"""Homes that were copied, moved or lost, and the pins they have in a cache that others share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from synapse_host.cache.host_records import HostRecord, claim_host, machine_digest, place_of, read_record
from synapse_host.cache.known_hosts import KnownHost, forget_host, known_hosts
from synapse_host.cache.layout import CacheLayout
from synapse_host.errors import StoreFailure
from synapse_host.store.upkeep import host_id_of
from synapse_host.testing.download_room import RunningRoom, manifest_of, running_room

pytestmark = pytest.mark.anyio

MODEL = b"weights" * 100
MANIFEST = manifest_of({"model": MODEL})
SHA = MANIFEST.files[0].sha256


@pytest.fixture(autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an id, wherever the test runs."""
    name = tmp_path_factory.mktemp("machine") / "machine-id"
    name.write_text("5" * 32)
    monkeypatch.setattr("synapse_host.cache.host_records._MACHINE_IDS", (name,))
    monkeypatch.setattr("synapse_host.cache.host_records._CONTAINER_MARKS", ())


def copy_home(home: Path, to: Path) -> None:
    """What ``cp -a`` does."""
    shutil.copytree(home, to, symlinks=True)


async def install(home: Path, shared: Path) -> str:
    """Install the model at a home that stops then; the host's id."""
    async with running_room(home, [MODEL], cache_root=shared) as running:
        assert (await running.download(MANIFEST))["state"] == "committed"
        return running.room.cache.owner


async def removed(running: RunningRoom) -> int:
    return (await running.room.removal([]).remove("tiny")).freed_bytes


def id_of_store(folder: Path) -> str | None:
    return host_id_of(folder / "synapse.db")


def hosts_of(shared: Path) -> dict[str, KnownHost]:
    return {known.host: known for known in known_hosts(CacheLayout(shared), id_of_store)}


async def test_a_copied_home_takes_nothing_of_its_original(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    original = await install(tmp_path / "one", shared)
    copy_home(tmp_path / "one", tmp_path / "two")
    async with running_room(tmp_path / "two", [MODEL], cache_root=shared) as second:
        assert second.room.cache.owner != original
        assert await removed(second) == 0
    async with running_room(tmp_path / "one", [MODEL], cache_root=shared) as first:
        assert first.room.cache.owner == original
        assert first.digests() == [SHA]
        assert await removed(first) == len(MODEL)


async def test_the_original_takes_nothing_of_a_copy_either(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    await install(tmp_path / "one", shared)
    copy_home(tmp_path / "one", tmp_path / "two")
    async with running_room(tmp_path / "two", [MODEL], cache_root=shared) as second:
        async with running_room(tmp_path / "one", [MODEL], cache_root=shared) as first:
            assert await removed(first) == 0
        assert second.room.cache.find(SHA) is not None
        copied = second.room.cache.owner
    async with running_room(tmp_path / "two", [MODEL], cache_root=shared) as again:
        assert again.room.cache.owner == copied, "a copy is the same host from its second start on"
        assert await removed(again) == len(MODEL)


async def test_a_copy_keeps_what_a_person_and_a_model_pinned(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with running_room(tmp_path / "one", [MODEL], cache_root=shared) as first:
        await first.download(MANIFEST)
        owner = first.room.cache.owner
        for what in ("operator", "model/mine", "download/job", "reuse/job"):
            first.room.cache.pin(SHA, f"{owner}/{what}")
        copy_home(tmp_path / "one", tmp_path / "two")
        async with running_room(tmp_path / "two", [MODEL], cache_root=shared) as second:
            mine = [pin for _, pin in second.room.cache.pins() if pin.startswith(f"{second.room.cache.owner}/")]
            assert sorted(pin.split("/")[1] for pin in mine) == ["install", "model", "operator"]
        assert {pin for _, pin in first.room.cache.pins()} >= {f"{owner}/download/job", f"{owner}/reuse/job"}


async def test_a_copy_started_beside_its_running_original_is_another_host(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with running_room(tmp_path / "one", [MODEL], cache_root=shared) as first:
        copy_home(tmp_path / "one", tmp_path / "two")
        # As if the place told nothing: two clones of one machine are at one place.
        (shared / "hosts" / f"{first.room.cache.owner}.json").unlink()
        async with running_room(tmp_path / "two", [MODEL], cache_root=shared) as second:
            assert second.room.cache.owner != first.room.cache.owner


async def test_a_moved_home_stays_the_host_it_was(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    original = await install(tmp_path / "one", shared)
    (tmp_path / "one").rename(tmp_path / "moved")
    assert await install(tmp_path / "moved", shared) == original
    assert list(hosts_of(shared)) == [original]


async def test_a_home_copied_with_its_own_cache_stays_the_host_it_was(tmp_path: Path) -> None:
    original = await install(tmp_path / "one", tmp_path / "one" / "models")
    copy_home(tmp_path / "one", tmp_path / "two")
    async with running_room(tmp_path / "two", [MODEL]) as second:
        assert second.room.cache.owner == original
        assert await removed(second) == len(MODEL)
    assert (tmp_path / "one" / "models" / "blobs" / SHA).exists()


async def test_a_copy_that_died_between_its_name_and_its_store_becomes_the_same_host(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    original = await install(tmp_path / "one", shared)
    copy_home(tmp_path / "one", tmp_path / "two")
    layout = CacheLayout(shared)
    names = []
    for _ in range(2):
        claim = claim_host(layout, original, tmp_path / "two", now_ms=1)
        names.append(claim.host)
        claim.release()
    assert names[0] == names[1] != original


async def test_what_became_of_each_host(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    stopped = await install(tmp_path / "stopped", shared)
    lost = await install(tmp_path / "lost", shared)
    gone = await install(tmp_path / "gone", shared)
    (tmp_path / "lost" / "synapse.db").unlink()
    shutil.rmtree(tmp_path / "gone")
    async with running_room(tmp_path / "running", [MODEL], cache_root=shared) as running:
        running.room.cache.pin(SHA, "host-stranger/operator")
        found = hosts_of(shared)
        states = {name: known.state for name, known in found.items()}
        assert states == {
            stopped: "stopped",
            lost: "gone",
            gone: "gone",
            running.room.cache.owner: "running",
            "host-stranger": "unknown",
        }
        assert (found[lost].pinned_files, found[lost].pinned_bytes) == (1, len(MODEL))
        assert found[running.room.cache.owner].pinned_files == 0


async def test_the_pins_of_a_lost_host_can_be_given_up_and_those_of_others_stay(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    lost = await install(tmp_path / "lost", shared)
    shutil.rmtree(tmp_path / "lost")
    layout = CacheLayout(shared)
    async with running_room(tmp_path / "other", [MODEL], cache_root=shared) as other:
        forgotten = forget_host(layout, lost)
        assert forgotten is not None
        assert (forgotten.pins, forgotten.free_files, forgotten.free_bytes) == (1, 1, len(MODEL))
        assert lost not in hosts_of(shared)
        assert not list(layout.hosts.glob(f"{lost}*"))
        for now_ms in (1, 2):
            other.room.cache.collect(now_ms=now_ms, grace_ms=0)
        assert other.digests() == []


async def test_the_pins_of_a_running_host_cannot_be_given_up(tmp_path: Path) -> None:
    async with running_room(tmp_path, [MODEL]) as running:
        await running.download(MANIFEST)
        layout, owner = running.room.cache.layout, running.room.cache.owner
        assert forget_host(layout, owner) is None
        assert [pin.split("/")[0] for _, pin in running.room.cache.pins()] == [owner]
        assert hosts_of(layout.root)[owner].state == "running"


async def test_a_host_that_was_forgotten_too_early_pins_anew(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    host = await install(tmp_path / "one", shared)
    assert forget_host(CacheLayout(shared), host) is not None
    async with running_room(tmp_path / "one", [MODEL], cache_root=shared) as back:
        assert back.room.cache.owner == host
        assert [pin.split("/")[:2] for _, pin in back.room.cache.pins()] == [[host, "install"]]


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[:-20], lambda data: data.replace(b'"inode": ', b'"inode": "x'), lambda _: b"[" * 100_000],
    ids=["cut", "text for a number", "nested"],
)
async def test_a_damaged_record_is_named(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    host = await install(tmp_path, tmp_path / "models")
    record = tmp_path / "models" / "hosts" / f"{host}.json"
    record.write_bytes(spoil(record.read_bytes()))
    with pytest.raises(StoreFailure, match=rf"{record}: .*remove the file"):
        read_record(CacheLayout(tmp_path / "models"), host)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = HostRecord("host-1", place_of(tmp_path), "box", 3, 4)
    assert HostRecord.from_json(record.to_json()) == record
    assert record.place.inode == tmp_path.stat().st_ino


def test_machines_are_told_apart_without_giving_their_id_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {machine_digest(lambda _, text=text: text) for text in ("a" * 32, "b" * 32)}  # type: ignore[misc]
    assert len(ids) == 2
    assert not any("a" * 32 in found for found in ids)
    assert machine_digest(lambda _: "\n") == "", "a machine without an id is like no other"
    monkeypatch.setattr("synapse_host.cache.host_records._CONTAINER_MARKS", (tmp_path,))
    assert machine_digest() == "", "the id in a container is that of its image"


async def test_a_home_on_another_machine_is_no_business_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    host = await install(tmp_path / "one", shared)
    shutil.rmtree(tmp_path / "one")
    assert hosts_of(shared)[host].state == "gone"
    monkeypatch.setattr("synapse_host.cache.host_records._CONTAINER_MARKS", (tmp_path,))
    assert hosts_of(shared)[host].state == "elsewhere"


async def test_without_an_id_a_machine_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synapse_host.cache.host_records._CONTAINER_MARKS", (tmp_path,))
    host = await install(tmp_path / "one", tmp_path / "shared")
    shutil.rmtree(tmp_path / "one")
    assert hosts_of(tmp_path / "shared")[host].state == "gone"
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert hosts_of(tmp_path / "shared")[host].state == "elsewhere"
