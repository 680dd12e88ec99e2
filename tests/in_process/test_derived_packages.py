"""Packages made of cached content: found by the same engine alone, whole or not at all, gone with their source."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.derived import DerivedClaim, derived_bytes
from synapse_host.errors import StoreFailure

TOOLS = {"engine": "maker", "version": "1", "build_flags": {"fast": "yes"}}
CODE, WEIGHTS = b"code" * 10, b"weights" * 10


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache.open(tmp_path / "models", "host-a")


@pytest.fixture
def source(cache: BlobCache) -> str:
    return put(cache, b"checkpoint")


def put(cache: BlobCache, content: bytes) -> str:
    with cache.ingest() as ingest:
        ingest.write(content)
        return ingest.commit(name="model", source_url="", owner=cache.owner).digest


def claimed(cache: BlobCache, source: str, tools: dict[str, object] | None = None) -> DerivedClaim:
    held = cache.claim_derived(source, tools or TOOLS)
    assert held is not None
    return held


def write(folder: Path, name: str = "a.package") -> None:
    (folder / name / "weights").mkdir(parents=True)
    (folder / name / "code").write_bytes(CODE)
    (folder / name / "weights" / "all").write_bytes(WEIGHTS)


def make(cache: BlobCache, source: str, name: str = "a.package") -> None:
    with claimed(cache, source) as held:
        write(held.folder, name)
        held.keep()


def seen(cache: BlobCache, source: str, tools: dict[str, object] | None = None) -> list[str]:
    with claimed(cache, source, tools) as held:
        return sorted(path.name for path in held.folder.iterdir())


def test_what_was_kept_is_found_by_the_same_engine_and_no_other(cache: BlobCache, source: str) -> None:
    make(cache, source)
    assert seen(cache, source) == ["a.package"]
    assert seen(cache, source, {**TOOLS, "version": "2"}) == []
    assert seen(cache, source, {**TOOLS, "build_flags": {}}) == []
    assert seen(cache, put(cache, b"another")) == []


def test_what_was_not_recorded_is_gone_for_the_next(cache: BlobCache, source: str) -> None:
    make(cache, source)
    with claimed(cache, source) as held:
        write(held.folder, "b.package")
        (held.folder / "note").write_text("half")
    assert seen(cache, source) == ["a.package"]


def _longer(package: Path) -> None:
    (package / "code").write_bytes(CODE + b"x")


def _other(package: Path) -> None:
    (package / "weights" / "all").write_bytes(b"\0" * len(WEIGHTS))


def _lost(package: Path) -> None:
    (package / "code").unlink()


def _more(package: Path) -> None:
    (package / "weights" / "more").write_bytes(b"")


def _link(package: Path) -> None:
    (package / "code").rename(package.parents[1] / "code")
    (package / "code").symlink_to(package.parents[1] / "code")


@pytest.mark.parametrize("spoil", [_longer, _other, _lost, _more, _link])
def test_a_package_that_is_not_as_recorded_goes_whole_and_others_stay(
    cache: BlobCache, source: str, spoil: Callable[[Path], None]
) -> None:
    with claimed(cache, source) as held:
        write(held.folder, "a.package")
        write(held.folder, "b.package")
        held.keep()
    spoil(held.folder / "a.package")
    assert seen(cache, source) == ["b.package"]


@pytest.mark.parametrize("record", [None, b"", b"[]", b'{"version": 1}', b"\xff"])
def test_without_its_record_nothing_is_served(cache: BlobCache, source: str, record: bytes | None) -> None:
    make(cache, source)
    with claimed(cache, source) as held:
        path = held.folder.parent / "record.json"
    path.unlink() if record is None else path.write_bytes(record)
    assert seen(cache, source) == []


def test_a_record_of_another_source_vouches_for_nothing(cache: BlobCache, source: str) -> None:
    make(cache, source)
    another = put(cache, b"another")
    with claimed(cache, source) as mine, claimed(cache, another) as other:
        write(other.folder)
        (other.folder.parent / "record.json").write_bytes((mine.folder.parent / "record.json").read_bytes())
    assert seen(cache, another) == []


def test_one_worker_at_a_time_has_a_folder_also_of_two_hosts(cache: BlobCache, source: str) -> None:
    other = BlobCache(cache.layout, "host-b")
    with claimed(cache, source) as held:
        assert other.claim_derived(source, TOOLS) is None
        assert cache.claim_derived(source, TOOLS) is None
        with claimed(other, source, {**TOOLS, "version": "2"}):
            pass
        held.release()
        with claimed(other, source):
            pass


def test_no_source_no_folder(cache: BlobCache, source: str) -> None:
    assert cache.claim_derived("a" * 64, TOOLS) is None
    cache.path(source).unlink()
    assert cache.claim_derived(source, TOOLS) is None
    assert not list(cache.layout.derived.iterdir())


def test_a_source_stays_under_whoever_has_what_was_made_of_it(cache: BlobCache, source: str) -> None:
    make(cache, source)
    cache.unpin(source)
    with claimed(cache, source) as held:
        for now_ms in (0, 100):
            (outcome,) = cache.collect(now_ms=now_ms, grace_ms=0)
            assert getattr(outcome.verdict, "reason", None) == "shared_reader_or_gc_active"
        assert (held.folder / "a.package" / "code").read_bytes() == CODE


def test_packages_go_with_their_source_and_count_as_freed(cache: BlobCache, source: str) -> None:
    make(cache, source)
    make(cache, source, "b.package")
    made = 2 * (len(CODE) + len(WEIGHTS))
    assert derived_bytes(cache.layout) == made
    assert cache.release(source, cache.owner, remove=True) == len(b"checkpoint") + made
    assert not list(cache.layout.derived.iterdir())


def test_packages_of_content_that_is_gone_are_collected(cache: BlobCache, source: str) -> None:
    make(cache, source)
    cache.path(source).write_bytes(b"damaged!!!")
    assert not cache.verify(source)
    cache.collect(now_ms=0, grace_ms=0)
    assert not list(cache.layout.derived.iterdir())


def test_packages_count_for_the_watermark(cache: BlobCache, source: str) -> None:
    cache.unpin(source)
    assert cache.over_watermark(50) == []
    make(cache, source)
    assert cache.over_watermark(50) == [source]


def test_a_cache_that_cannot_be_written_is_typed(
    cache: BlobCache, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(cache, source) as held:
        write(held.folder)

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreFailure, match="No space left on device"):
            held.keep()
        monkeypatch.undo()
    assert seen(cache, source) == []
