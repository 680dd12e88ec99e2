"""The engine every backend with tensor operations shares: one loaded model, from token ids to vectors.

It decides lengths, grouping and cutting, asks the backend for executables and puts results back in the order of the
batch. It neither pools nor normalises nor judges vectors: the family does the first two, the worker the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType, EmbedBatch, PluginError, Pooling, Progress
from synapse_host.ops.tensor_ops import Batch, Handle, Rows, TensorOps
from synapse_host.owned_engine.executables import Build, ExecutableCache, ExecutableKey, GraphBackend
from synapse_host.owned_engine.family_table import Family, FamilyConfig
from synapse_host.owned_engine.segments import Segment, segments_for
from synapse_host.owned_engine.shape_policy import BucketLadder, Call, RowRefused, plan, regime
from synapse_host.worker_protocol.item_refusal import refusal_text

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

#: Padded positions hold this id. It is never read back: masks and pooling come from counts alone.
_PADDING_ID = 0


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model is to run: what LOAD fixes beside the weights."""

    family: Family
    config: Mapping[str, Any]
    dtype: DType
    max_tokens: int
    threads: int


class OwnedEngine:
    """One model on one backend. ``rows_computed`` counts rows the backend executed, for whoever doubts a cache."""

    def __init__(self, backend: GraphBackend, settings: ModelSettings, ladder: BucketLadder | None = None) -> None:
        self._backend = backend
        self._settings = settings
        self._ladder = ladder or BucketLadder(settings.max_tokens)
        self._executables = ExecutableCache(backend)
        # Not a method of this object: a cache that refers back to it would keep its weights until a garbage collection.
        self._configured = lru_cache(maxsize=None)(partial(_read_config, settings))
        shape = self._configured("mean", True)
        _check_positions(settings, shape)
        self._vocab_size = shape.vocab_size
        self.dims = shape.hidden_size
        self.buckets: Sequence[int] | None = self._ladder.buckets()
        self.rows_computed = 0

    def warm_up(self, pooling: Pooling, normalize: bool, progress: Progress) -> None:
        """Make the executables of short rows and run one: a missing or misshapen tensor shows here, not in service.

        Raises:
            PluginError: artifact_invalid, with the tensor's name and shapes.

        """
        batch = EmbedBatch(np.zeros(1, np.int32), (1,), ("warm-up",), pooling, normalize)
        call = Call(self._ladder.bucket(1), (0,))
        try:
            self._run(call, batch, np.zeros(1, np.int64), lambda: None)
        except ValueError as mismatch:
            raise PluginError("artifact_invalid", str(mismatch)) from mismatch
        progress(1, "setup")

    def embed(self, batch: EmbedBatch, progress: Progress) -> Float32:
        """Vectors of every row, float32 [rows, dims], in the order of the batch.

        Progress counts executed segments. Raises ``PluginError`` with invalid_request for a row the lane cannot hold
        or an id outside the vocabulary; the message names the item.
        """
        offsets = self._checked_offsets(batch)
        calls = self._plan(batch)
        vectors = np.empty((len(batch.counts), self.dims), dtype=np.float32)
        done = _Counter(progress)
        for call in calls:
            vectors[list(call.row_indices)] = self._run(call, batch, offsets, done)
            self.rows_computed += len(call.row_indices)
        return vectors

    def unload(self) -> None:
        """Drop the executables and the weights; the engine cannot be used afterwards."""
        self._executables.clear()
        self._backend.close()

    def _run(self, call: Call, batch: EmbedBatch, offsets: npt.NDArray[np.int64], done: Callable[[], None]) -> Float32:
        ids, counts = _padded(call, batch, offsets)
        hidden: Any = None
        pieces = segments_for(self._configured(batch.pooling, batch.normalize).layers, call.tokens)
        for segment in pieces:
            executable = self._executables.get(self._key(call, batch, segment), self._build(batch, segment))
            hidden = executable(ids, counts, hidden)
            done()
            if len(pieces) > 1:
                self._backend.between_segments()
        result: Float32 = hidden
        return result

    def _key(self, call: Call, batch: EmbedBatch, segment: Segment) -> ExecutableKey:
        family = self._settings.family
        way_out = f"{batch.pooling}-{'l2' if batch.normalize else 'none'}" if segment.has_head else "hidden"
        return ExecutableKey(
            family=family.name,
            task=f"embed-{way_out}",
            segment=segment,
            regime=regime(call.bucket) if family.windowed else "full",
            dtype=self._settings.dtype,
            threads=self._settings.threads,
            width=self.dims,
            shape=(len(call.row_indices), call.bucket) if self._backend.static_shapes else None,
        )

    def _build(self, batch: EmbedBatch, segment: Segment) -> Build:
        family, config = self._settings.family, self._configured(batch.pooling, batch.normalize)

        def build(ops: TensorOps, inputs: Batch, hidden: Rows | None) -> Handle:
            x = family.stem(ops, config, inputs) if segment.has_stem else hidden
            for i in range(segment.first, segment.stop):
                x = family.block(ops, config, i, x, inputs)
            return ops.result(family.head(ops, config, x, inputs)) if segment.has_head else x

        return build

    def _plan(self, batch: EmbedBatch) -> list[Call]:
        try:
            return plan(batch.counts, self._ladder)
        except RowRefused as refusal:
            text = refusal_text(batch.item_ids[refusal.row], refusal.problem)
            raise PluginError("invalid_request", text) from refusal

    def _checked_offsets(self, batch: EmbedBatch) -> npt.NDArray[np.int64]:
        """Where each row starts in ``batch.ids``; the ids are held against the vocabulary on the way."""
        ends = np.cumsum(np.asarray(batch.counts, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        if total != len(batch.ids):
            raise PluginError("invalid_request", f"{len(batch.ids)} token ids came for rows of {total} tokens in all")
        outside = np.flatnonzero((batch.ids < 0) | (batch.ids >= self._vocab_size))
        if len(outside):
            row = int(np.searchsorted(ends, outside[0], side="right"))
            problem = (
                f"token id {int(batch.ids[outside[0]])} is outside the vocabulary of {self._vocab_size}; "
                "use the tokenizer published with the model"
            )
            raise PluginError("invalid_request", refusal_text(batch.item_ids[row], problem))
        return ends - np.asarray(batch.counts, dtype=np.int64)


class _Counter:
    """Turns finished segments into progress reports of one request."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._completed = 0

    def __call__(self) -> None:
        self._completed += 1
        self._progress(self._completed, "inference")


def _padded(call: Call, batch: EmbedBatch, offsets: npt.NDArray[np.int64]) -> tuple[Int32, Int32]:
    ids = np.full((len(call.row_indices), call.bucket), _PADDING_ID, dtype=np.int32)
    counts = np.array([batch.counts[row] for row in call.row_indices], dtype=np.int32)
    for line, row, count in zip(ids, call.row_indices, counts, strict=True):
        line[:count] = batch.ids[offsets[row] : offsets[row] + count]
    return ids, counts


def _read_config(settings: ModelSettings, pooling: Pooling, normalize: bool) -> FamilyConfig:
    family = settings.family
    try:
        return family.config(settings.config, pooling=pooling, normalize=normalize)
    except (TypeError, ValueError) as fault:
        raise PluginError("config_invalid", f"config.json of a {family.name} model: {fault}") from fault


def _check_positions(settings: ModelSettings, config: FamilyConfig) -> None:
    if settings.max_tokens > config.positions:
        raise PluginError(
            "config_invalid",
            f"max_tokens {settings.max_tokens} passes the {config.positions} positions of the model; lower max_tokens",
        )
