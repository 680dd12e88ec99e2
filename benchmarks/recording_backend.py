"""The cpu backend that also writes down every batch it is given and how long the engine took over it.

A host started with this module beside it (see ``recorded_host``) sends its worker's batches here, so the bare loop can
be given exactly those. The copy that runs writes next to itself; a record costs a few microseconds, which count
against the host.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from synapse_owned_cpu import plugin as cpu

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from synapse_host.hookspecs import EmbedBatch, Progress, Vectors
    from synapse_host.owned_engine.engine import OwnedEngine

BACKEND = "cpu-recorded"
#: Seconds of the engine call and rows of the batch; then the tokens of each row and all ids, i32.
_HEAD = struct.Struct("<dI")
_ID_BYTES = 4
_record: BinaryIO | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedBatch:
    """One batch a worker was given: its rows of token ids as bytes, and the seconds its engine took."""

    seconds: float
    rows: tuple[bytes, ...]


def record_path(folder: Path) -> Path:
    """Where the copy of this module in ``folder`` writes."""
    return folder / "batches.record"


def read_record(data: bytes) -> Iterator[RecordedBatch]:
    """Every batch in the bytes of a record, oldest first."""
    position = 0
    while position < len(data):
        seconds, rows = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        counts = struct.unpack_from(f"<{rows}i", data, position)
        position += rows * _ID_BYTES
        found = []
        for count in counts:
            found.append(data[position : position + count * _ID_BYTES])
            position += count * _ID_BYTES
        yield RecordedBatch(seconds, tuple(found))


@hookimpl
def synapse_describe() -> BackendDescription:
    """The cpu backend under this one's id and an engine name of its own, for embedding alone."""
    described = cpu.synapse_describe()
    return dataclasses.replace(described, backend=BACKEND, engine=f"{described.engine}-recorded", tasks=("embed",))


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """As the cpu backend."""
    return cpu.synapse_probe_capability()


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> OwnedEngine:
    """As the cpu backend; opens the record."""
    global _record
    _record = record_path(Path(__file__).parent).open("ab", buffering=0)
    return cpu.synapse_load(spec, progress)


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """As the cpu backend, timed and written down."""
    started = time.perf_counter()
    vectors = cpu.synapse_embed(model, batch, progress)
    seconds = time.perf_counter() - started
    assert _record is not None
    counts = struct.pack(f"<{len(batch.counts)}i", *batch.counts)
    _record.write(_HEAD.pack(seconds, len(batch.counts)) + counts + batch.ids.tobytes())
    return vectors


@hookimpl
def synapse_unload(model: OwnedEngine) -> bool:
    """As the cpu backend."""
    return cpu.synapse_unload(model)
