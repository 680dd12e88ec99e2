"""Kills a host's downloads room at durable steps of all it does, starts it again and looks at what is left.

    python -m synapse_host.testing.crashes.download_crashes DIRECTORY TIMES

Steps are those of the model cache and the transactions of the store. A first life tells them all. Then each kind of
step of an operation of ``OFTEN`` is died at ``TIMES`` times, spread over where it occurs, and of the others once;
opening a file is left out. With ``TIMES`` 0 every single step is died at. The last line printed is a JSON object:
deaths by operation and step.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import anyio

from synapse_host.cache.pin_owners import operator_owner
from synapse_host.downloads.failures import download_failed
from synapse_host.errors import ArtifactInvalid
from synapse_host.store.database import Store
from synapse_host.store.upkeep import faults_of
from synapse_host.testing.crashes.sudden_death import CACHE_STEPS, Deaths, Life, dying, one_life
from synapse_host.testing.download_room import RunningRoom, manifest_of, running_room

STEPS = (*CACHE_STEPS, (Store, "transact"))
MODEL, TOKENIZER, CONFIG, LOST, KEPT = (name.encode() * 900 for name in ("model", "token", "config", "lost", "kept"))
CONTENTS = (MODEL, TOKENIZER, CONFIG, LOST, KEPT)
FIRST = manifest_of({"model": MODEL, "tokenizer": TOKENIZER}, catalog_id="first")
SECOND = manifest_of({"tokenizer": TOKENIZER, "config": CONFIG}, catalog_id="second")
BROKEN = manifest_of({"model": LOST, "config": CONFIG}, catalog_id="broken")
STANDING = manifest_of({"model": KEPT}, catalog_id="standing")
#: Operations that have kinds of steps no other has.
OFTEN = ("boot", "download", "cancel", "find damage", "repair", "remove", "gc")


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _download(running: RunningRoom) -> None:
    assert (await running.download(FIRST))["state"] == "committed"


async def _share(running: RunningRoom) -> None:
    assert (await running.download(SECOND))["state"] == "committed"


async def _fail(running: RunningRoom) -> None:
    running.source.fail["config.bin"] = download_failed("config.bin", "network", "cut")
    # Present content is not fetched, so the failure is that of the one file that is not.
    running.source.fail["model.bin"] = download_failed("model.bin", "network", "cut")
    assert (await running.download(BROKEN))["state"] == "failed"
    running.source.fail.clear()


async def _cancel(running: RunningRoom) -> None:
    running.source.hold, running.source.waiting = anyio.Event(), anyio.Event()
    job = await running.room.jobs.submit(BROKEN, None)
    await running.source.waiting.wait()
    assert (await running.room.jobs.cancel(job["job_id"]))["state"] == "cancelled"
    running.source.hold = None


async def _find_damage(running: RunningRoom) -> None:
    running.room.cache.path(_sha(CONFIG)).write_bytes(b"\0" * len(CONFIG))
    try:
        await running.room.verifier.require("config.bin", _sha(CONFIG), len(CONFIG))
    except ArtifactInvalid:
        return
    raise AssertionError("the damage was not found")


async def _remove(running: RunningRoom) -> None:
    await running.room.removal([]).remove("first")


async def _pin(running: RunningRoom) -> None:
    running.room.cache.pin(_sha(CONFIG), operator_owner(running.room.cache.owner))
    with running.room.cache.ingest() as ingest:
        ingest.write(LOST)
        ingest.commit(name="lost", source_url="memory", owner=operator_owner(running.room.cache.owner))


async def _unpin(running: RunningRoom) -> None:
    running.room.cache.unpin(_sha(LOST), operator_owner(running.room.cache.owner))


async def _gc(running: RunningRoom) -> None:
    for now_ms in (0, 10):
        running.room.cache.collect(now_ms=now_ms, grace_ms=10)


_WORK: Sequence[tuple[str, Callable[[RunningRoom], Awaitable[None]]]] = (
    ("download", _download),
    ("share", _share),
    ("fail", _fail),
    ("cancel", _cancel),
    ("find damage", _find_damage),
    ("repair", _share),
    ("remove", _remove),
    ("pin", _pin),
    ("unpin", _unpin),
    ("gc", _gc),
)


def _live(home: Path, deaths: Deaths) -> None:
    async def live() -> None:
        async with running_room(home, CONTENTS) as running:
            deaths.done("boot")
            for name, operation in _WORK:
                deaths.operation = name
                await operation(running)
                deaths.done(name)
            deaths.operation = "stop"

    deaths.operation = "boot"
    with dying(deaths, STEPS):
        anyio.run(live)


def _leave_work_for_a_boot(home: Path, deaths: Deaths) -> None:
    """An install that stays, and a job that is killed in the middle of its second file."""

    async def live() -> None:
        async with running_room(home, CONTENTS) as running:
            assert (await running.download(STANDING))["state"] == "committed"
            running.source.hold = anyio.Event()
            running.source.hold.set()
            await running.room.jobs.submit(FIRST, "left")
            while running.room.cache.find(_sha(MODEL)) is None:
                await anyio.lowlevel.checkpoint()
            running.source.hold = anyio.Event()
            running.source.waiting = anyio.Event()
            await running.source.waiting.wait()
            deaths.done("left")
            deaths.step("left", lambda: None)()

    deaths.operation = "left"
    anyio.run(live)


def _check(home: Path, finished: Sequence[str], deaths: Deaths) -> None:
    """Start again on what is left, and hold it against all that must be true of it."""
    spoilt = {_sha(CONFIG)} if "cancel" in finished else set()
    for path in (home / "models" / "blobs").iterdir():
        assert path.name in spoilt or _sha(path.read_bytes()) == path.name, f"{path.name} was half there at the death"

    async def check() -> None:
        async with running_room(home, CONTENTS) as after:
            _check_left(after, finished)
            await _check_jobs(after)
            assert (await after.download(FIRST))["state"] == "committed", "a new download does not go through"
            assert (await after.download(SECOND))["state"] == "committed", "a repair does not go through"
            _check_left(after, (*finished, "download", "repair"))

    anyio.run(check)
    assert faults_of(home / "synapse.db") == []
    deaths.done("checked")


def _check_left(after: RunningRoom, finished: Sequence[str]) -> None:
    cache = after.room.cache
    assert not list(cache.layout.incoming.iterdir()), "the remains of a transfer outlived the boot"
    assert not list(cache.layout.metadata.glob(".*")), "the remains of a document outlived the boot"
    installed = {install.catalog_id: install for install in after.room.installs.all()}
    damaged = {_sha(CONFIG)} if "second" in installed else set()
    for path in cache.layout.blobs.iterdir():
        if path.name not in damaged:
            assert _sha(path.read_bytes()) == path.name, f"{path.name} is half there"
    for install in installed.values():
        for member in install.members.values():
            whole = cache.path(member.sha256).is_file()
            assert whole or member.sha256 in damaged, f"{member.name} of {install.catalog_id} is missing"
    assert "standing" in installed, "an install that nobody touched is gone"
    assert ("first" in installed) or "download" not in finished or "cancel" in finished or _may_be_removed(finished)
    assert "second" in installed or "share" not in finished
    assert "broken" not in installed
    assert {purpose[0] for purpose in after.pins()} <= {"install", "operator"}, "a job that ended still pins"
    unpinned = set(cache.layout.digests()) - {digest for digest, _ in cache.pins()}
    assert not unpinned or "pin" in finished, "the boot left content that nothing needs"
    _collect(after)
    pinned = {digest for digest, _ in cache.pins()}
    assert set(cache.layout.digests()) == pinned, "content nobody needs outlived two collections"
    wanted = {member.sha256 for install in installed.values() for member in install.members.values()}
    assert pinned <= wanted | {_sha(LOST), _sha(CONFIG)}, "content nobody asked for is pinned"


def _may_be_removed(finished: Sequence[str]) -> bool:
    """Whether the removal may have begun: what comes before it is done."""
    return "repair" in finished


def _collect(after: RunningRoom) -> None:
    for now_ms in (10_000, 20_000, 30_000):
        after.room.cache.collect(now_ms=now_ms, grace_ms=10)


async def _check_jobs(after: RunningRoom) -> None:
    """Every job has ended, and the one that was left is told as a restart's."""
    states = await after.store.run(
        lambda session: [
            tuple(row)
            for row in session.connection().exec_driver_sql("SELECT job_id, state FROM downloads ORDER BY job_id")
        ]
    )
    assert all(state != "open" for _, state in states), f"a job is still open after the boot: {states}"
    left = await after.room.jobs.status("models-download-1-2")
    assert left["error"]["code"] == "module_restarted"
    assert after.counts.open == 0


def _spread(steps: Sequence[str], times: int) -> Iterator[int]:
    """The steps to die at, counted from 1: ``times`` of each kind spread over where it occurs, or all of them."""
    if not times:
        yield from range(1, len(steps) + 1)
        return
    places: dict[str, list[int]] = {}
    for number, step in enumerate(steps, start=1):
        places.setdefault(kind_of(step), []).append(number)
    for kind, found in places.items():
        operation, _, name = kind.partition(": ")
        wanted = times if operation in OFTEN else 1
        if name != "open":
            yield from islice(cycle(found[:: max(1, len(found) // wanted)]), wanted)


def kind_of(step: str) -> str:
    """A step without whether it was before or after."""
    return step.replace("before ", "").replace("after ", "")


def main(directory: Path, times: int) -> None:
    """Die as often as told, and print where."""
    shutil.rmtree(directory, ignore_errors=True)
    origin = directory / "origin"
    left = one_life(1, partial(_leave_work_for_a_boot, origin))
    assert left.finished == ["left"], left
    steps = _life(directory / "whole", origin, None).steps
    deaths: Counter[str] = Counter()
    for number, at in enumerate(_spread(steps, times)):
        life = _life(directory / str(number), origin, at)
        assert life.died is not None, f"step {at} of {len(steps)} never came"
        deaths[kind_of(life.died)] += 1
    sys.stdout.write(json.dumps(deaths) + "\n")


def _life(home: Path, origin: Path, at: int | None) -> Life:
    shutil.copytree(origin, home)
    life = one_life(at, partial(_live, home))
    checked = one_life(None, partial(_check, home, life.finished))
    assert checked.finished == ["checked"], f"after death at step {at} ({life.died}), {life.finished} being finished"
    shutil.rmtree(home)
    return life


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "deaths", int(sys.argv[2]))
