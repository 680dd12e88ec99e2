"""Kills a process at every durable step of the model cache and looks at what is left. Run as a program.

    python -m synapse_host.testing.crashes.cache_crashes DIRECTORY TIMES

Every call that changes the disk is a step: once it is killed right before, once right after. Each kind of step is died
at ``TIMES`` times, spread over where it occurs; with ``TIMES`` 0 every single step is. The last line printed is a JSON
object: deaths by kind of step, each named by the operation it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.testing.crashes.sudden_death import CACHE_STEPS, Deaths, Life, dying, one_life

_STEPS = (*CACHE_STEPS, (os, "mkdir"), (os, "unlink"), (os, "rmdir"))
_TOOLCHAIN = {"engine": "maker", "version": "1"}
#: What a worker makes, a package a call: two files in two folders.
_PACKAGES = ("first", "second")
_KEPT = b"content a living host keeps " * 50


def _content(name: str) -> bytes:
    return f"{name} ".encode() * 100


def _put(cache: BlobCache, content: bytes) -> str:
    with cache.ingest() as ingest:
        ingest.write(content)
        return ingest.commit(name="file", source_url="https://example.org", owner=cache.owner).digest


def _make(cache: BlobCache, source: str, package: str) -> None:
    """What a worker and its host do: a package is written, and known to be whole when the worker has ended."""
    claimed = cache.claim_derived(source, _TOOLCHAIN)
    assert claimed is not None
    with claimed:
        for path, content in _files(claimed.folder, package):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        claimed.keep()


def _files(folder: Path, package: str) -> list[tuple[Path, bytes]]:
    return [(folder / package / name, f"{package} {name} ".encode() * 99) for name in ("code", "weights/all")]


def _operations(cache: BlobCache) -> list[tuple[str, Callable[[], object]]]:
    fresh, doomed, damaged = (_content(name) for name in ("fresh", "doomed", "damaged"))
    doomed_digest, damaged_digest = (hashlib.sha256(content).hexdigest() for content in (doomed, damaged))
    return [
        ("make", lambda: _make(cache, doomed_digest, "first")),
        ("make more", lambda: _make(cache, doomed_digest, "second")),
        ("ingest", lambda: _put(cache, fresh)),
        ("ingest again", lambda: _put(cache, fresh)),
        ("pin", lambda: cache.pin(doomed_digest)),
        ("unpin", lambda: cache.unpin(doomed_digest)),
        ("mark", lambda: cache.collect(now_ms=0, grace_ms=10)),
        ("remove", lambda: cache.collect(now_ms=10, grace_ms=10)),
        ("quarantine", lambda: cache.verify(damaged_digest)),
        ("repair", lambda: _put(cache, damaged)),
    ]


def _prepared(root: Path) -> None:
    """What is there before: content another host pins, content nobody does, and content that is damaged."""
    shutil.rmtree(root, ignore_errors=True)
    keeper, dying = BlobCache.open(root, "keeper"), BlobCache.open(root, "dying")
    _put(keeper, _KEPT)
    dying.unpin(_put(dying, _content("doomed")))
    damaged = _put(dying, _content("damaged"))
    dying.path(damaged).write_bytes(b"\0" * dying.path(damaged).stat().st_size)


def _live(root: Path, deaths: Deaths) -> None:
    cache = BlobCache.open(root, "dying")
    with dying(deaths, _STEPS):
        for name, operation in _operations(cache):
            deaths.operation = name
            operation()
            deaths.done(name)


def _check(root: Path, finished: list[str]) -> None:
    """Nothing half is visible, nothing wanted is gone, nothing unwanted outlives two collections."""
    cache = BlobCache.open(root, "keeper")
    fresh, damaged = (hashlib.sha256(_content(name)).hexdigest() for name in ("fresh", "damaged"))
    for path in cache.layout.blobs.iterdir():
        if path.name != damaged:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, f"{path.name} is half there"
    wanted = [hashlib.sha256(_KEPT).hexdigest()]
    if "ingest" in finished:
        wanted.append(fresh)
    if "repair" in finished:
        wanted.append(damaged)
    for digest in wanted:
        with cache.lease(digest):
            assert cache.verify(digest), f"{digest} was there and is gone"
    _check_made(cache, hashlib.sha256(_content("doomed")).hexdigest(), finished)
    for digest in cache.layout.digests():
        cache.unpin(digest, "dying")
    for now_ms in (100, 200, 300):
        cache.collect(now_ms=now_ms, grace_ms=10)
    assert cache.layout.digests() == wanted[:1], "content nobody wants outlived the collections"
    assert not list(cache.layout.derived.iterdir()), "what was made of content outlived it"
    assert not list(cache.layout.incoming.iterdir()), "the remains of an ingest outlived the collections"
    assert len(list(cache.layout.metadata.iterdir())) == len(list(cache.layout.leases.iterdir())) == 1


def _check_made(cache: BlobCache, source: str, finished: list[str]) -> None:
    """Whoever comes next finds whole packages alone, and those that were known to be whole."""
    claimed = cache.claim_derived(source, _TOOLCHAIN)
    if claimed is None:
        assert not cache.path(source).exists(), "a dead worker keeps its folder"
        return
    with claimed:
        found = sorted(path.name for path in claimed.folder.iterdir())
        for package in found:
            for path, content in _files(claimed.folder, package):
                assert path.read_bytes() == content, f"{path} is half there"
        known = [package for package, made in zip(_PACKAGES, ("make", "make more"), strict=True) if made in finished]
        # The death may come after the record was written and before the operation was told to be done.
        assert set(found) >= set(known) or "mark" in finished, f"{known} were made, {found} are left"


def _spread(steps: Sequence[str], times: int) -> Iterator[int]:
    """The steps to die at, counted from 1: ``times`` of each kind spread over where it occurs, or all of them."""
    if not times:
        yield from range(1, len(steps) + 1)
        return
    places: dict[str, list[int]] = {}
    for number, step in enumerate(steps, start=1):
        places.setdefault(step, []).append(number)
    for found in places.values():
        yield from (found[turn * len(found) // times] for turn in range(times))


def main(root: Path, times: int) -> None:
    """Die at every kind of step of every operation, ``times`` times over."""

    def life(at: int | None) -> Life:
        _prepared(root)
        lived = one_life(at, partial(_live, root))
        _check(root, lived.finished)
        return lived

    steps = life(None).steps
    deaths: Counter[str] = Counter()
    for at in _spread(steps, times):
        died = life(at).died
        assert died == steps[at - 1], f"step {at} of {len(steps)} was {died}, not {steps[at - 1]}"
        deaths[died] += 1
    sys.stdout.write(json.dumps(deaths) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "models", int(sys.argv[2]))
