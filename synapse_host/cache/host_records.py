"""The hosts that share a cache: a record and a lock for each, in its ``hosts`` folder.

The lock is held as long as the host lives and ends with its process. A record says where the host's store lies, and in
which cache it was written: one that came with a copy of the whole cache says nothing of the copy.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from synapse_host.cache import pin_owners
from synapse_host.cache.durable_files import write_durably
from synapse_host.cache.host_identity import Place, copied_id, is_same_place
from synapse_host.cache.layout import CacheLayout, unusable
from synapse_host.cache.locks import change_lock, locked_alone
from synapse_host.cache.metadata import read_metadata, write_metadata
from synapse_host.errors import StoreFailure
from synapse_host.identity.digests import sha256_hex
from synapse_host.values import value_object

_VERSION = 1
#: What a copied host needs as its original does. Jobs are not copied: they run in one process.
_COPIED_KINDS = frozenset({pin_owners.INSTALL, pin_owners.MODEL, pin_owners.OPERATOR})
#: A record is written anew when it is older: the day a host was last there is enough to know.
_SEEN_MS = 24 * 60 * 60 * 1000
#: Where a machine's own id stands. In a container it is that of an image, or none.
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


@value_object
class HostRecord:
    """One host: where its store lies, the name of its machine for people, and when it was last seen to start."""

    host: str
    place: Place
    hostname: str
    cache_inode: int
    seen_ms: int

    def to_json(self) -> bytes:
        """The record as it is written."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> HostRecord:
        """Read a record; raises ``ValueError`` for anything ``to_json`` would not write."""
        try:
            fields: Any = json.loads(data)
            if fields.pop("version") != _VERSION:
                raise ValueError(f"is no record of version {_VERSION}")
            found = cls(**{**fields, "place": Place(**fields["place"])})
        except (TypeError, KeyError, AttributeError, RecursionError) as wrong:
            raise ValueError(f"has other fields than expected: {wrong}") from wrong
        numbers = (found.place.device, found.place.inode, found.cache_inode, found.seen_ms)
        texts = (found.host, found.hostname, found.place.machine, found.place.path)
        if any(type(number) is not int for number in numbers) or any(type(text) is not str for text in texts):
            raise ValueError("has a text for a number, or a number for a text")
        return found


class HostClaim:
    """A host's right to its id in one cache, until ``release`` or the end of the process."""

    def __init__(self, host: str, descriptor: int) -> None:
        self.host = host
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the id up; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def claim_host(layout: CacheLayout, host_id: str, home: Path, *, now_ms: int) -> HostClaim:
    """The id under which the host whose store lies in ``home`` pins content here; another than ``host_id`` for a copy.

    A copy is a host whose id another one holds, or that comes from another place than the record says. It gets the pins
    of its original beside them, so that neither can take what the other needs. Blocks.

    Raises:
        StoreFailure: the cache cannot be written, or a record in it cannot be read.

    """
    here = place_of(home)
    try:
        with change_lock(layout):
            number, wanted = 0, host_id
            while (claimed := _claimed(layout, wanted, here)) is None:
                wanted = copied_id(host_id, here, number)
                number += 1
            claim, known = claimed
            try:
                _note(layout, wanted, here, now_ms, known)
                if wanted != host_id:
                    _copy_pins(layout, host_id, wanted)
            except BaseException:
                claim.release()
                raise
            return claim
    except OSError as problem:
        raise unusable(layout.root, problem) from problem


def read_record(layout: CacheLayout, host: str) -> HostRecord | None:
    """The record of a host, None where this cache has none.

    Raises:
        StoreFailure: it cannot be read, or is about something else.

    """
    path = layout.host_record(host)
    try:
        found = HostRecord.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise StoreFailure(f"{path}: {problem}; remove the file while no host uses the cache") from problem
    if found.host != host:
        raise StoreFailure(f"{path} is about {found.host}; remove the file while no host uses the cache")
    return found if found.cache_inode == layout.root.stat().st_ino else None


def is_running(layout: CacheLayout, host: str) -> bool:
    """Whether a process holds the lock of ``host``; the caller holds the change lock."""
    try:
        descriptor = locked_alone(layout.host_lock(host))
    except FileNotFoundError:
        return False
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def place_of(home: Path) -> Place:
    """Where a store lies that is in ``home``."""
    path = home.resolve()
    facts = path.stat()
    return Place(machine_digest(), str(path), facts.st_dev, facts.st_ino)


def machine_digest(read: Callable[[Path], str] = Path.read_text) -> str:
    """A digest that tells machines apart and does not give their ids away; empty in a container or without an id."""
    if any(mark.exists() for mark in _CONTAINER_MARKS):
        return ""
    for path in _MACHINE_IDS:
        try:
            found = read(path).strip()
        except (OSError, ValueError):
            continue
        if found:
            return sha256_hex(f"synapse-host cache {found}".encode())[:32]
    return ""


def _claimed(layout: CacheLayout, host: str, here: Place) -> tuple[HostClaim, HostRecord | None] | None:
    """The claim to the id and the record it stands in, None where somebody else has it or is noted to."""
    descriptor = locked_alone(layout.host_lock(host), os.O_CREAT)
    if descriptor is None:
        return None
    try:
        record = read_record(layout, host)
    except BaseException:
        os.close(descriptor)
        raise
    if record is None or is_same_place(record.place, here):
        return HostClaim(host, descriptor), record
    os.close(descriptor)
    return None


def _note(layout: CacheLayout, host: str, here: Place, now_ms: int, known: HostRecord | None) -> None:
    if known is None or known.place != here or not 0 <= now_ms - known.seen_ms < _SEEN_MS:
        inode = layout.root.stat().st_ino
        record = HostRecord(host, here, socket.gethostname(), inode, now_ms)
        write_durably(layout.host_record(host), record.to_json())


def _copy_pins(layout: CacheLayout, original: str, copy: str) -> None:
    for digest in layout.digests():
        metadata = read_metadata(layout, digest)
        if metadata is None:
            continue
        changed = metadata
        for owner in metadata.pins:
            purpose = pin_owners.purpose_of(owner, original)
            if purpose is not None and purpose.kind in _COPIED_KINDS:
                changed = changed.pinned_by(pin_owners.same_purpose(owner, copy))
        if changed != metadata:
            write_metadata(layout, changed)
