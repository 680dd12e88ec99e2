"""Garbage collection: the rule of ``collection_rule`` carried out, under the locks readers and other hosts respect."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from synapse_host.cache.collection_rule import Delete, Keep, Mark, Verdict, judge
from synapse_host.cache.derived import remove_derived, remove_orphans
from synapse_host.cache.durable_files import remove_durably
from synapse_host.cache.layout import CacheLayout, unusable
from synapse_host.cache.locks import change_lock, exclusive_lease
from synapse_host.cache.metadata import BlobMetadata, Tombstone, read_metadata, write_metadata
from synapse_host.values import value_object


@value_object
class Outcome:
    """What became of one digest, and the bytes that were freed."""

    digest: str
    verdict: Verdict
    freed_bytes: int = 0


def collect(
    layout: CacheLayout, *, owner: str, now_ms: int, grace_ms: int, digests: Iterable[str] | None = None
) -> list[Outcome]:
    """Mark and remove what nobody wants, of ``digests`` or of all; the remains of broken ingests go as well.

    Raises:
        StoreFailure: the cache cannot be read or written, or a document in it cannot be read.

    """
    try:
        with change_lock(layout):
            if digests is None:
                _remove_abandoned(layout.incoming)
                _remove_partial(layout.metadata, layout.hosts)
                remove_orphans(layout)
                digests = layout.digests()
                _remove_idle_leases(layout, digests)
            return [_collect_one(layout, digest, owner, now_ms, grace_ms) for digest in digests]
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def sweep(layout: CacheLayout) -> None:
    """Remove what hosts that died left half written; raises ``StoreFailure``."""
    try:
        with change_lock(layout):
            _remove_abandoned(layout.incoming)
            _remove_partial(layout.metadata, layout.hosts)
            remove_orphans(layout)
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def release(layout: CacheLayout, digest: str, owner: str, *, remove: bool) -> int:
    """Take a pin back and, with ``remove``, the content with it where nobody else pins or reads it; the freed bytes.

    Content that stays for a reader is nobody's from here on and goes in a collection.

    Raises:
        StoreFailure: the cache cannot be read or written.

    """
    try:
        with change_lock(layout):
            metadata = read_metadata(layout, digest)
            if metadata is None or owner not in metadata.pins:
                return 0
            left = metadata.unpinned_by(owner)
            if remove and not left.pins:
                with exclusive_lease(layout, digest) as alone:
                    if alone:
                        return _delete(layout, digest)
            write_metadata(layout, left)
            return 0
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def _collect_one(layout: CacheLayout, digest: str, owner: str, now_ms: int, grace_ms: int) -> Outcome:
    with exclusive_lease(layout, digest) as alone:
        if not alone:
            return Outcome(digest, Keep("shared_reader_or_gc_active"))
        metadata = read_metadata(layout, digest)
        if metadata is None:
            _adopt(layout, digest, Tombstone(now_ms, owner))
            return Outcome(digest, Keep("missing_metadata"))
        verdict = judge(metadata, owner=owner, now_ms=now_ms, grace_ms=grace_ms)
        if isinstance(verdict, Delete):
            return Outcome(digest, verdict, _delete(layout, digest))
        if isinstance(verdict, Mark):
            _mark(layout, metadata, Tombstone(verdict.marked_ms, owner))
        return Outcome(digest, verdict)


def _adopt(layout: CacheLayout, digest: str, stone: Tombstone) -> None:
    """Describe content nobody described, marked to go: kept this time, collected as any other from the next on."""
    blob = layout.blob(digest)
    if blob.exists():
        write_metadata(layout, BlobMetadata(digest, blob.stat().st_size, "unknown", tombstone=stone))


def _mark(layout: CacheLayout, metadata: BlobMetadata, stone: Tombstone) -> None:
    standing = metadata.tombstone
    if standing is None or standing.marked_ms != stone.marked_ms:
        write_metadata(layout, replace(metadata, tombstone=stone))


def _delete(layout: CacheLayout, digest: str) -> int:
    """What was made of it, then content: a document without content is no harm, content without one is nobody's."""
    blob = layout.blob(digest)
    freed = remove_derived(layout, digest)
    freed += blob.stat().st_size if blob.exists() else 0
    remove_durably(blob)
    remove_durably(layout.metadata_file(digest))
    layout.lease_file(digest).unlink(missing_ok=True)
    return freed


def _remove_idle_leases(layout: CacheLayout, digests: Sequence[str]) -> None:
    """Lease files of content that is not here, as a refused reader or a broken collection leaves them."""
    for path in _files(layout.leases):
        if path.name not in digests:
            with exclusive_lease(layout, path.name) as alone:
                if alone:
                    path.unlink(missing_ok=True)


def _remove_abandoned(incoming: Path) -> None:
    """Files of ingests whose process is gone: nobody holds their lock."""
    for path in _files(incoming):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _remove_partial(*folders: Path) -> None:
    """Documents that were never finished; the change lock is held, so nobody writes one now."""
    for path in (path for folder in folders for path in _files(folder)):
        if path.name.startswith(".") and path.suffix == ".part":
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """The files of a folder, what else somebody put there passed over: no host writes a directory or a link in it."""
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
