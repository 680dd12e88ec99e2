"""The model cache on a real directory: content, pins, leases, collection, damage."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.collection import Outcome
from synapse_host.cache.collection_rule import Delete, Keep, Mark
from synapse_host.cache.layout import CacheLayout
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.errors import ArtifactInvalid, InvalidRequest, StoreFailure

CONTENT = b"weights of a model" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
GRACE = 60_000


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache.open(tmp_path / "models", "host-a")


def put(cache: BlobCache, content: bytes = CONTENT) -> BlobMetadata:
    with cache.ingest() as ingest:
        for start in range(0, len(content), 1000):
            ingest.write(content[start : start + 1000])
        return ingest.commit(name="model.safetensors", source_url="https://example.org/m", owner=cache.owner)


def collected(cache: BlobCache, now_ms: int, **more: str) -> list[Outcome]:
    return cache.collect(now_ms=now_ms, grace_ms=GRACE, **more)


def test_committed_content_is_found_under_its_digest_and_pinned(cache: BlobCache) -> None:
    described = put(cache)
    assert (described.digest, described.size, described.pins) == (DIGEST, len(CONTENT), ("host-a",))
    assert cache.find(f"sha256:{DIGEST}") == described
    with cache.lease(DIGEST):
        assert cache.path(DIGEST).read_bytes() == CONTENT


def test_what_is_not_committed_leaves_nothing(cache: BlobCache) -> None:
    with cache.ingest() as ingest:
        ingest.write(CONTENT)
        assert list(cache.layout.incoming.iterdir())
    assert not list(cache.layout.incoming.iterdir())
    assert cache.layout.digests() == []


@pytest.mark.parametrize("wrong", [{"expected_sha256": "0" * 64}, {"expected_size": 5}])
def test_content_that_is_not_what_was_promised_never_becomes_visible(
    cache: BlobCache, wrong: dict[str, object]
) -> None:
    with cache.ingest() as ingest:
        ingest.write(CONTENT)
        with pytest.raises(ArtifactInvalid, match=DIGEST) as refused:
            ingest.commit(name="a.bin", source_url="u", owner="host-a", **wrong)
    assert (
        refused.value.details
        == {
            "file": "a.bin",
            "expected_sha256": None,
            "expected_size": None,
            "actual_sha256": DIGEST,
            "actual_size": len(CONTENT),
        }
        | wrong
    )
    assert cache.layout.digests() == []


def test_two_hosts_share_content_and_each_has_its_own_pin(cache: BlobCache) -> None:
    other = BlobCache.open(cache.layout.root, "host-b")
    put(cache)
    assert put(other).pins == ("host-a", "host-b")
    cache.unpin(DIGEST)
    assert collected(cache, 0) == [Outcome(DIGEST, Keep("pinned_by_foreign_module"))]
    assert collected(other, 0) == [Outcome(DIGEST, Keep("pinned_by_requesting_module"))]


def test_unpinned_content_is_marked_and_goes_after_the_grace(cache: BlobCache) -> None:
    put(cache)
    cache.unpin(DIGEST)
    assert collected(cache, 1000) == [Outcome(DIGEST, Mark(1000, 1000 + GRACE))]
    assert collected(cache, 999 + GRACE) == [Outcome(DIGEST, Mark(1000, 1000 + GRACE))]
    assert collected(cache, 1000 + GRACE) == [Outcome(DIGEST, Delete(), len(CONTENT))]
    assert cache.find(DIGEST) is None
    assert [*cache.layout.blobs.iterdir(), *cache.layout.metadata.iterdir(), *cache.layout.leases.iterdir()] == []


def test_a_pin_takes_the_mark_back(cache: BlobCache) -> None:
    put(cache)
    cache.unpin(DIGEST)
    collected(cache, 0)
    assert cache.pin(DIGEST).tombstone is None


def test_nothing_goes_under_a_reader_of_another_host(cache: BlobCache) -> None:
    other = BlobCache.open(cache.layout.root, "host-b")
    put(cache)
    cache.unpin(DIGEST)
    collected(cache, 0)
    with other.lease(DIGEST):
        assert collected(cache, GRACE) == [Outcome(DIGEST, Keep("shared_reader_or_gc_active"))]
        assert cache.path(DIGEST).read_bytes() == CONTENT
    assert collected(cache, GRACE) == [Outcome(DIGEST, Delete(), len(CONTENT))]


def test_readers_do_not_keep_each_other_or_a_pin_out(cache: BlobCache) -> None:
    put(cache)
    with cache.lease(DIGEST), cache.lease(DIGEST):
        assert cache.pin(DIGEST, "third").pins == ("host-a", "third")


def test_a_lease_on_what_is_not_there_is_refused_and_holds_nothing(cache: BlobCache) -> None:
    with pytest.raises(ArtifactInvalid, match="download it again") as refused:
        cache.lease(DIGEST)
    assert refused.value.details == {"digest": DIGEST}
    put(cache)
    cache.unpin(DIGEST)
    collected(cache, 0)
    assert collected(cache, GRACE)[0].verdict == Delete()


@pytest.mark.parametrize("text", ["", "abc", "sha256:", "A" * 64, "0" * 65, "../" + "0" * 61, "0" * 63 + "\n"])
def test_what_is_no_digest_is_refused_before_any_path_is_made(cache: BlobCache, text: str) -> None:
    for use in (cache.find, cache.lease, cache.path, cache.pin, cache.verify):
        with pytest.raises(InvalidRequest, match="64 lowercase hexadecimal digits"):
            use(text)


def test_pinning_what_is_not_there_is_refused(cache: BlobCache) -> None:
    with pytest.raises(InvalidRequest, match="download it first"):
        cache.pin(DIGEST)


@pytest.mark.parametrize("damage", [b"\0" * len(CONTENT), CONTENT[:-1], b""])
def test_damaged_content_goes_into_quarantine_and_can_be_fetched_again(cache: BlobCache, damage: bytes) -> None:
    put(cache)
    cache.path(DIGEST).write_bytes(damage)
    assert cache.verify(DIGEST) is False
    assert cache.find(DIGEST) is None
    assert [path.read_bytes() for path in cache.layout.quarantine.iterdir()] == [damage]
    assert put(cache).valid
    assert cache.verify(DIGEST) is True


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_goes_into_quarantine_too(cache: BlobCache, make: Callable[[Path], None]) -> None:
    put(cache)
    cache.path(DIGEST).unlink()
    make(cache.path(DIGEST))
    assert cache.audit(DIGEST) is None
    assert len(list(cache.layout.quarantine.iterdir())) == 1
    assert put(cache).valid


def test_content_of_another_length_is_refused_without_hashing(cache: BlobCache) -> None:
    put(cache)
    cache.path(DIGEST).write_bytes(CONTENT[:-1])
    with pytest.raises(ArtifactInvalid, match=f"has {len(CONTENT) - 1} bytes, not {len(CONTENT)}"):
        cache.lease(DIGEST)


def test_content_nobody_described_is_kept_once_and_then_collected(cache: BlobCache) -> None:
    cache.path(DIGEST).write_bytes(CONTENT)
    assert collected(cache, 0) == [Outcome(DIGEST, Keep("missing_metadata"))]
    assert collected(cache, GRACE)[0].verdict == Delete()


def test_a_digest_the_cache_knows_nothing_of_cannot_be_collected(cache: BlobCache) -> None:
    with pytest.raises(InvalidRequest, match=f"digest {'0' * 64} has no content") as refused:
        cache.collect(now_ms=0, grace_ms=0, digest="sha256:" + "0" * 64)
    assert refused.value.details == {"digest": "0" * 64}
    assert not list(cache.layout.leases.iterdir())


def test_content_that_is_lost_can_be_collected_by_its_digest(cache: BlobCache) -> None:
    put(cache)
    cache.unpin(DIGEST)
    cache.path(DIGEST).unlink()
    for now_ms in (0, GRACE):
        cache.collect(now_ms=now_ms, grace_ms=GRACE, digest=DIGEST)
    assert not cache.layout.metadata_file(DIGEST).exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"expected_sha256": "0" * 64}, f"expected: sha256 {'0' * 64};"),
        ({"expected_size": 5}, "expected: 5 bytes;"),
        ({"expected_sha256": "0" * 64, "expected_size": 5}, f"expected: 5 bytes and sha256 {'0' * 64};"),
    ],
)
def test_only_what_was_expected_is_told(cache: BlobCache, wrong: dict[str, Any], said: str) -> None:
    with cache.ingest() as ingest:
        ingest.write(CONTENT)
        with pytest.raises(ArtifactInvalid) as refused:
            ingest.commit(name="a.bin", source_url="u", owner="host-a", **wrong)
    assert said in refused.value.message
    assert "None" not in refused.value.message


def test_a_document_that_was_changed_by_hand_is_named(cache: BlobCache) -> None:
    put(cache)
    file = cache.layout.metadata_file(DIGEST)
    file.write_bytes(file.read_bytes().replace(b"host-a", b"host-z").replace(b'"version": 1', b'"version":  1'))
    with pytest.raises(StoreFailure, match=rf"{DIGEST}\.json"):
        cache.find(DIGEST)


WRONG_FIELDS = {
    "size": ["abc", None, -5, 10**40, True],
    "pins": [[1, 2], [None]],
    "source_url": [None, 3],
    "format": [None],
    "valid": ["no", 1],
    "sanitized_tokenizer_digest": [5],
    "tombstone": [{"marked_ms": "x", "marked_by": "host-a"}, {"marked_ms": 1, "marked_by": None}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, given in WRONG_FIELDS.items() for value in given])
def test_a_document_with_a_field_no_host_writes_is_named(cache: BlobCache, name: str, value: object) -> None:
    put(cache)
    file = cache.layout.metadata_file(DIGEST)
    document = {**json.loads(file.read_bytes()), name: value}
    file.write_bytes(json.dumps(document, sort_keys=True, indent=1).encode() + b"\n")
    for use in (cache.pins, lambda: cache.find(DIGEST)):
        with pytest.raises(StoreFailure, match=rf"{DIGEST}\.json: has .* for its {name}; remove the file"):
            use()


def test_a_document_nested_too_deep_is_named(cache: BlobCache) -> None:
    put(cache)
    cache.layout.metadata_file(DIGEST).write_bytes(b"[" * 100_000)
    with pytest.raises(StoreFailure, match=rf"{DIGEST}\.json: is nested too deep; remove the file"):
        cache.pins()


def test_a_cache_that_cannot_be_listed_is_told(cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(StoreFailure, match=r"Permission denied: .*/blobs\); give the host's user the right"):
        cache.pins()


def test_a_collection_removes_what_dead_hosts_left_and_spares_the_living(cache: BlobCache) -> None:
    (cache.layout.incoming / "ingest-1-1.tmp").write_bytes(b"left by a host that died")
    (cache.layout.metadata / f".{DIGEST}.json.1.part").write_bytes(b"{")
    with cache.ingest() as ingest:
        ingest.write(CONTENT)
        assert collected(cache, 0) == []
        (alive,) = cache.layout.incoming.iterdir()
        ingest.commit(name="a", source_url="u", owner="host-a")
    assert alive.name != "ingest-1-1.tmp"
    assert [path.name for path in cache.layout.metadata.iterdir()] == [f"{DIGEST}.json"]


def test_a_collection_passes_over_what_no_host_put_there(cache: BlobCache) -> None:
    strangers = []
    for folder in (cache.layout.incoming, cache.layout.leases, cache.layout.metadata):
        strangers += [folder / "lost+found.part", folder / ".loop.part"]
        strangers[-2].mkdir()
        strangers[-1].symlink_to(strangers[-1].name)
    (cache.layout.incoming / "ingest-1-1.tmp").write_bytes(b"left by a host that died")
    cache.sweep()
    assert collected(cache, 0) == []
    assert all(stranger.is_symlink() or stranger.is_dir() for stranger in strangers)
    assert not (cache.layout.incoming / "ingest-1-1.tmp").exists()


def test_the_watermark_counts_reading_as_use(cache: BlobCache) -> None:
    digests = [put(cache, bytes([number]) * 1000).digest for number in range(3)]
    for age, digest in enumerate(digests):
        cache.unpin(digest)
        cache.lease(digest).release()
        os.utime(cache.layout.lease_file(digest), (100 - age, 100 - age))
    assert cache.over_watermark(1500) == [digests[2], digests[1]]
    cache.lease(digests[2]).release()
    assert cache.over_watermark(1500) == [digests[1], digests[0]]


def test_the_watermark_goes_on_where_another_host_gives_content_up_meanwhile(
    cache: BlobCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = (put(cache, bytes([number]) * 1000).digest for number in range(2))
    cache.unpin(kept)
    find = BlobCache.find

    def found_and_lost(cache: BlobCache, digest: str) -> BlobMetadata | None:
        metadata = find(cache, digest)
        if digest == gone:
            cache.path(digest).unlink(missing_ok=True)
        return metadata

    monkeypatch.setattr(BlobCache, "find", found_and_lost)
    assert cache.over_watermark(500) == [kept]


def test_a_watermark_that_cannot_be_held_is_a_store_failure(cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(layout: CacheLayout) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(layout.derived))

    monkeypatch.setattr("synapse_host.cache.blob_cache.derived_bytes", denied)
    with pytest.raises(StoreFailure, match="derived"):
        cache.over_watermark(500)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "give the host's user the right to write there, or choose another cache directory"),
        (errno.EACCES, "give the host's user the right to write there, or choose another cache directory"),
        (errno.ENOSPC, "free disk space there, then retry"),
        (errno.EIO, "check the disk, then retry"),
    ],
)
def test_a_cache_that_cannot_be_written_is_named_with_a_remedy(
    cache: BlobCache, number: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with cache.ingest() as ingest:
        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(StoreFailure) as refused:
            ingest.write(CONTENT)
    assert str(cache.layout.root) in refused.value.message
    assert refused.value.message.endswith(remedy)
    assert cache.layout.digests() == []


def test_a_file_system_without_locks_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StoreFailure, match="no file locks; choose a cache directory on one that has"):
        BlobCache.open(tmp_path / "models", "host-a")
