"""The memory a lane is given, against what its calls take: published shapes, real allocations, nothing computed.

Arrays are NumPy's and empty, and each takes its place in a pool that counts as CuPy's does (version 14).
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synapse_owned_cuda import cuda_ops, lane_limits
from synapse_owned_cuda.cuda_backend import CudaBackend
from synapse_owned_cuda.memory_plan import SLACK, CallSize, pool_limit
from synapse_owned_cuda.plugin import RECOMMENDED_BATCH

from benchmarks.random_checkpoints import SHAPES
from synapse_host.hookspecs import DType
from synapse_host.owned_engine.decoder import OwnedDecoder
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.family_table import family_named
from synapse_host.owned_engine.shape_policy import BucketLadder
from synapse_host.testing.engine_runs import batch_of, ignore_progress

#: CuPy rounds every array up to this.
UNIT = 512


@dataclass
class Pool:
    """CuPy's: a freed piece is kept, cut for smaller arrays and joined with its free neighbours; the limit counts all.

    ``chunks`` are pieces [offset, size, taken] of each allocation of the driver, in order.
    """

    limit: int = 0
    gives_back: bool = True
    chunks: dict[int, list[list[Any]]] = field(default_factory=dict)
    total: int = 0
    used: int = 0
    most_used: int = 0
    given_back: int = 0

    def take(self, size: int) -> tuple[int, int]:
        size = max(UNIT, -(-size // UNIT) * UNIT)
        fitting = [
            (piece[1], key, piece)
            for key, pieces in self.chunks.items()
            for piece in pieces
            if not piece[2] and piece[1] >= size
        ]
        if not fitting:
            return self._new(size)
        _, key, piece = min(fitting, key=lambda found: found[0])
        if piece[1] > size:
            pieces = self.chunks[key]
            pieces.insert(pieces.index(piece) + 1, [piece[0] + size, piece[1] - size, False])
            piece[1] = size
        return self._taken(key, piece)

    def _new(self, size: int) -> tuple[int, int]:
        if self.limit and self.total + size > self.limit and self.gives_back:
            self._give_back()
        if self.limit and self.total + size > self.limit:
            raise MemoryError(f"{size} more than {self.total} of {self.limit}")
        key = max(self.chunks, default=0) + 1
        self.chunks[key] = [[0, size, False]]
        self.total += size
        return self._taken(key, self.chunks[key][0])

    def _taken(self, key: int, piece: list[Any]) -> tuple[int, int]:
        piece[2] = True
        self.used += piece[1]
        self.most_used = max(self.most_used, self.used)
        return key, piece[0]

    def give(self, key: int, offset: int) -> None:
        pieces = self.chunks[key]
        at = bisect_left(pieces, [offset])
        pieces[at][2] = False
        self.used -= pieces[at][1]
        for near in (at, at - 1):
            if 0 <= near < len(pieces) - 1 and not pieces[near][2] and not pieces[near + 1][2]:
                pieces[near][1] += pieces.pop(near + 1)[1]

    def _give_back(self) -> None:
        """Of whole allocations alone."""
        for key in [key for key, pieces in self.chunks.items() if len(pieces) == 1 and not pieces[0][2]]:
            self.total -= self.chunks.pop(key)[0][1]
            self.given_back += 1


class Counted(np.ndarray[Any, Any]):
    """An array with a place in its device's pool; a view of it holds its memory as it does on the device."""

    counter: CountingDevice

    def __array_finalize__(self, source: Any) -> None:
        if source is not None and hasattr(source, "counter"):
            self.counter = source.counter

    def astype(self, dtype: Any, *more: Any, copy: bool = True, **named: Any) -> Any:
        return self if self.dtype == dtype and not copy else self.counter.empty(self.shape, dtype)

    def copy(self, *more: Any) -> Any:
        return self.counter.empty(self.shape, self.dtype)


class CountingDevice:
    """A device that computes nothing: launches are forgotten, and results are arrays nobody wrote to."""

    def __init__(self, pool: Pool, free: int = 2**40) -> None:
        self.pool, self._free = pool, free
        self.xp = SimpleNamespace(
            float16=np.float16,
            float32=np.float32,
            int32=np.int32,
            empty=self.empty,
            ascontiguousarray=lambda x: x if x.flags.c_contiguous else self.empty(x.shape, x.dtype),
            isnan=lambda x: self._made(x.shape, np.bool_),
            argmax=lambda x, axis: self._made(x.shape[:-1], np.int64),
            where=lambda condition, a, b: self._made(condition.shape, np.int64),
        )

    def _made(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros, for operations whose result is used at once."""
        made = self.empty(shape, dtype)
        made[...] = 0
        return made

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array in the pool."""
        # Memory of the process is not touched: only what is taken counts.
        made = np.empty(tuple(shape), dtype).view(Counted)
        made.counter = self
        place = self.pool.take(made.nbytes)
        weakref.finalize(made, self.pool.give, *place).atexit = False
        return made

    def launch(self, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Any]) -> None:
        """Nothing is written."""

    def product(self, x: Any, w: Any) -> Any:
        return self.empty((x.shape[0], w.shape[0]), x.dtype)

    def to_device(self, array: Any) -> Any:
        return self.empty(array.shape, array.dtype)

    def to_host(self, array: Any) -> Any:
        return np.zeros(array.shape, array.dtype)

    def free_memory(self) -> int:
        return self._free

    def limit_memory(self, size: int) -> None:
        self.pool.limit = size

    def wait(self) -> None:
        """Nothing runs."""


class Checkpoint:
    """A checkpoint of a published shape without its numbers."""

    def __init__(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        self._tensors = tensors

    def __iter__(self) -> Any:
        return iter(self._tensors)

    def entry(self, name: str) -> Any:
        shape = self._tensors[name]
        return SimpleNamespace(shape=shape, dtype="BF16", to_float32=lambda: np.zeros(shape, np.float32))

    def close(self) -> None:
        """There is nothing to close."""


# --- lanes -------------------------------------------------------------------------------------------------------


#: Tokens of a vocabulary: as few as are enough, for every one of them is a row of a table.
VOCAB = 1000


@dataclass
class Lane:
    """A model of a published width on the counting device, with fewer blocks: what one takes, the next takes again."""

    name: str
    dtype: DType
    max_tokens: int
    task: Any = "embed"
    blocks: int = 4

    def __post_init__(self) -> None:
        shape, gone = SHAPES[self.name], range(self.blocks, 100)
        config = {**shape.config, "num_hidden_layers": self.blocks, "vocab_size": VOCAB}
        kept = {
            name: tuple(VOCAB if size == shape.vocab else size for size in dims)
            for name, dims in shape.tensors.items()
            if not any(f"layers.{i}." in name for i in gone)
        }
        family = family_named(str(config["model_type"]))
        self.settings = ModelSettings(family, config, self.dtype, self.max_tokens, 1, self.task)
        self.checkpoint: Any = Checkpoint(kept)

    @property
    def call(self) -> CallSize:
        item = {"f16": 2, "f32": 4}[self.dtype]
        return lane_limits._call(self.settings, item, RECOMMENDED_BATCH.token_budget)

    def backend(self, pool: Pool) -> CudaBackend:
        """Under the limit the plugin sets."""
        device: Any = CountingDevice(pool)
        lane_limits.limit_lane(self.checkpoint, self.settings, device, RECOMMENDED_BATCH.token_budget)
        return CudaBackend(self.checkpoint, device, max_tokens=self.max_tokens, dtype=self.dtype)


GROWING = (1, 16, 100, 300, 512, 1000, 2048, 3000, 5000, 8192)


def embed_growing_rows(lane: Lane, pool: Pool, growing: Sequence[int] = GROWING) -> int:
    """Rows that grow, so that nothing the pool has kept is large enough, and the largest calls of each, down again.

    Returns the bytes of the weights; the pool has seen the rest.
    """
    budget = RECOMMENDED_BATCH.token_budget
    engine = OwnedEngine(lane.backend(pool), lane.settings, BucketLadder(lane.max_tokens, token_budget=budget))
    weights, lengths = pool.used, [length for length in growing if length <= lane.max_tokens]
    for count, length in [*((1, length) for length in lengths), *((budget // n or 1, n) for n in lengths[::-1])]:
        rows = [np.zeros(length, np.int32)] * min(count, 64)
        engine.embed(batch_of(rows, "last" if lane.name == "qwen3" else "mean"), ignore_progress)
    return weights


LANES = [Lane("gte", "f16", 8192), Lane("gte", "f32", 512), Lane("qwen3", "f16", 8192), Lane("qwen3", "f32", 2048)]


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: f"{lane.name} {lane.dtype} {lane.max_tokens}")
def test_no_call_takes_more_than_was_planned_nor_far_less(lane: Lane) -> None:
    pool = Pool()
    weights = embed_growing_rows(lane, pool)
    taken = pool.most_used - weights
    assert lane.call.bytes / 3 <= taken <= lane.call.bytes
    assert pool.total <= pool.limit


def test_a_pool_that_gave_nothing_back_would_end_a_lane_that_has_room() -> None:
    """As CuPy's does by itself: it counts what it keeps, and keeps it."""
    lane, lengths = Lane("qwen3", "f16", 8192, blocks=1), range(128, 8193, 192)
    pool = Pool(gives_back=False)
    with pytest.raises(MemoryError):
        embed_growing_rows(lane, pool, lengths)
    assert pool.most_used < pool.limit - lane.call.bytes / 2
    embed_growing_rows(lane, pool := Pool(), lengths)
    assert pool.given_back > 0


def test_a_text_may_grow_to_the_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values move to larger arrays on the way, layer by layer."""
    monkeypatch.setattr(cuda_ops, "_CACHE_STEP", 32)
    lane, pool = Lane("qwen3", "f16", 300, "generate"), Pool()
    decoder = OwnedDecoder(lane.backend(pool), lane.settings, ())
    weights = pool.used
    made = decoder.generate(np.zeros(200, np.int32), {"max_tokens": 101}, ignore_progress)
    assert len(made.token_ids) == 101
    assert pool.most_used - weights <= lane.call.bytes
    assert pool.total <= pool.limit


def test_the_plan_says_what_it_is_made_of() -> None:
    assert CallSize(10, 4, 6, 2, kept=7).bytes == 10 * (9 * 4 + 3 * 6) * 2 + 7
    assert pool_limit(100, CallSize(10, 4, 6, 2), free=2**40) == 100 + 1.25 * 1080 + SLACK
    assert pool_limit(100, CallSize(10, 4, 6, 2), free=1180 + SLACK) == 1180 + SLACK
    with pytest.raises(MemoryError, match="needs 64 MiB of the GPU"):
        pool_limit(100, CallSize(10, 4, 6, 2), free=1179 + SLACK)
