"""Whether a host is the one a cache knows by its name, or a copy of it. Pure.

A host pins content under an id that its store holds, and a store can be copied. What cannot be copied is where it lies:
a directory has its inode to itself. So the cache notes the place of every host, and one that comes from another place
under a known id is another host.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.values import value_object

#: running: its lock is held. stopped: its home is here. gone: another home, or none, is where its home was.
#: elsewhere: its home is not this machine's to look at. unknown: it has pins and was never noted in this cache.
HostState = Literal["running", "stopped", "gone", "elsewhere", "unknown"]


@value_object
class Place:
    """The directory of a store. ``machine`` is a digest that tells machines apart; empty where nothing does."""

    machine: str
    path: str
    device: int
    inode: int


def is_same_place(known: Place, here: Place) -> bool:
    """Whether both are one directory. One may be renamed, and devices get other numbers when a machine starts."""
    same_name = known.path == here.path or known.device == here.device
    return known.machine == here.machine and known.inode == here.inode and same_name


def copied_id(host_id: str, here: Place, number: int) -> str:
    """The id of the copy of ``host_id`` at this place; the same however often it is asked for. ``number`` from 0."""
    return f"host-{sha256_hex(canonical_json([host_id, asdict(here), number]))[:16]}"


def state_of(*, running: bool, noted: bool, is_here: bool, is_there: bool | None) -> HostState:
    """What became of a host that runs, was noted, or whose note is of the machine that asks.

    ``is_there`` says whether its store is where it was, None where that cannot be seen.
    """
    if running:
        return "running"
    if not noted:
        return "unknown"
    if not is_here or is_there is None:
        return "elsewhere"
    return "stopped" if is_there else "gone"
