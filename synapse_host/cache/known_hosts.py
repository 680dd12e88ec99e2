"""Which hosts a cache keeps content for, what became of them, and giving up the pins of one that is no more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from synapse_host.cache import pin_owners
from synapse_host.cache.durable_files import remove_durably
from synapse_host.cache.host_identity import HostState, state_of
from synapse_host.cache.host_records import HostRecord, is_running, machine_digest, read_record
from synapse_host.cache.layout import CacheLayout, unusable
from synapse_host.cache.locks import change_lock
from synapse_host.cache.metadata import BlobMetadata, read_metadata, write_metadata
from synapse_host.errors import StoreFailure
from synapse_host.values import value_object

#: The id of the host whose store lies in a directory, None where none does; ``StoreFailure`` where it cannot be read.
StoreId = Callable[[Path], str | None]


@value_object
class KnownHost:
    """A host that was noted in the cache or has pins there. ``record`` is None for one that was never noted."""

    host: str
    state: HostState
    record: HostRecord | None
    pinned_files: int
    pinned_bytes: int


@value_object
class Forgotten:
    """What a host had that is no more: pins, and the files nobody pins now."""

    pins: int
    free_files: int
    free_bytes: int


def known_hosts(layout: CacheLayout, id_of_store: StoreId) -> list[KnownHost]:
    """Every host of the cache, by id. Blocks.

    Raises:
        StoreFailure: the cache or a document in it cannot be read.

    """
    try:
        # While it is held no host takes its lock, so that looking at one is never in a starting host's way.
        with change_lock(layout):
            documents = _documents(layout)
            names = {path.stem for path in layout.hosts.glob("*.json")} if layout.hosts.is_dir() else set()
            names |= {pin_owners.parts_of(owner).host for found in documents for owner in found.pins}
            return [_known(layout, name, documents, id_of_store) for name in sorted(names)]
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def forget_host(layout: CacheLayout, host: str) -> Forgotten | None:
    """Take every pin of ``host`` back and its record away; None, and nothing is changed, where it runs.

    Content that nobody pins then goes in a collection. Blocks.

    Raises:
        StoreFailure: the cache cannot be written, or a document in it cannot be read.

    """
    try:
        with change_lock(layout):
            if is_running(layout, host):
                return None
            pins, free = 0, list[BlobMetadata]()
            for metadata in _documents(layout):
                owners = [owner for owner in metadata.pins if pin_owners.belongs_to(owner, host)]
                left = metadata
                for owner in owners:
                    left = left.unpinned_by(owner)
                if owners:
                    write_metadata(layout, left)
                    pins += len(owners)
                    free += [] if left.pins else [left]
            remove_durably(layout.host_record(host))
            layout.host_lock(host).unlink(missing_ok=True)
            return Forgotten(pins, len(free), sum(found.size for found in free))
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def _known(layout: CacheLayout, host: str, documents: list[BlobMetadata], id_of_store: StoreId) -> KnownHost:
    record = read_record(layout, host)
    state = state_of(
        running=is_running(layout, host),
        noted=record is not None,
        is_here=record is not None and _is_here(record),
        is_there=_is_there(record, id_of_store) if record else None,
    )
    kept = [found for found in documents if any(pin_owners.belongs_to(owner, host) for owner in found.pins)]
    return KnownHost(host, state, record, len(kept), sum(found.size for found in kept))


def _is_here(record: HostRecord) -> bool:
    """Whether the note is of this machine; without an id, of one of its name, for containers have one each."""
    machine = machine_digest()
    return record.place.machine == machine and (machine != "" or record.hostname == socket.gethostname())


def _is_there(record: HostRecord, id_of_store: StoreId) -> bool | None:
    """Whether the host's store is where it was; None where that cannot be seen."""
    home = Path(record.place.path)
    try:
        if home.stat().st_ino != record.place.inode:
            return False
        return id_of_store(home) == record.host
    except FileNotFoundError:
        return False
    except (OSError, StoreFailure):
        return None


def _documents(layout: CacheLayout) -> list[BlobMetadata]:
    found = (read_metadata(layout, digest) for digest in layout.digests())
    return [metadata for metadata in found if metadata is not None]
