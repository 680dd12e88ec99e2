"""The engine every backend with tensor operations shares: one loaded model, from token ids to vectors or scores.

It decides lengths, grouping and cutting, asks the backend for executables and puts results back in the order of the
batch. It neither pools nor normalises nor judges numbers: the family does the first two, the worker the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType, EmbedBatch, PluginError, Pooling, Progress, Task
from synapse_host.ops.tensor_ops import Batch, Handle, Rows, TensorOps
from synapse_host.owned_engine.executables import (
    Build,
    ExecutableCache,
    ExecutableKey,
    GraphBackend,
    ReportingExecutable,
)
from synapse_host.owned_engine.family_table import Family, FamilyConfig
from synapse_host.owned_engine.row_refusal import row_refused
from synapse_host.owned_engine.segments import TOKENS_PER_SEGMENT, Segment, segments_for, tokens_to_cut
from synapse_host.owned_engine.shape_policy import BucketLadder, Call, RowRefused, plan, regime

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

#: Padded positions hold this id. It is never read back: masks and pooling come from counts alone.
_PADDING_ID = 0


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model is to run: what LOAD fixes beside the weights.

    ``separator`` is the token that ends the first text of a pair, for families that tell the two apart; None where the
    tokenizer does not.
    """

    family: Family
    config: Mapping[str, Any]
    dtype: DType
    max_tokens: int
    threads: int
    task: Task = "embed"
    separator: int | None = None


@dataclass(frozen=True, slots=True)
class _WayOut:
    """What a request wants of the hidden rows: ``head`` (ops, config, x, batch) makes it."""

    label: str
    config: FamilyConfig
    head: Callable[..., Any]
    kinds: bool = False


class OwnedEngine:
    """One model on one backend, loaded as ``settings`` says.

    ``rows_computed`` counts rows the backend executed, for whoever doubts a cache.
    """

    def __init__(self, backend: GraphBackend, settings: ModelSettings, ladder: BucketLadder | None = None) -> None:
        self._backend = backend
        self._settings = self.settings = settings
        self._ladder = ladder or BucketLadder(settings.max_tokens)
        self._executables = ExecutableCache(backend)
        # Not a method of this object: a cache that refers back to it would keep its weights until a garbage collection.
        self._configured = lru_cache(maxsize=None)(partial(_read_config, settings))
        shape = self._configured("mean", True)
        _check_positions(settings, shape)
        if settings.task == "rerank":
            _check_scoring(settings, self._configured("cls", False))
        self._vocab_size = shape.vocab_size
        self._width = shape.hidden_size
        self.dims = self._width if settings.task == "embed" else 0
        self.buckets: Sequence[int] | None = self._ladder.buckets()
        self.rows_computed = 0

    def warm_up(self, pooling: Pooling, normalize: bool, progress: Progress) -> None:
        """Make the executables of short rows and run one: a missing or misshapen tensor shows here, not in service.

        Raises:
            PluginError: artifact_invalid, with the tensor's name and shapes.

        """
        batch = EmbedBatch(np.zeros(1, np.int32), (1,), ("warm-up",), pooling, normalize)
        way = self._vectors(pooling, normalize) if self._settings.task == "embed" else self._scores()
        call = Call(self._ladder.bucket(1), (0,))
        try:
            self._run(call, batch, way, np.zeros(1, np.int64), lambda: None)
        except ValueError as mismatch:
            raise PluginError("artifact_invalid", str(mismatch)) from mismatch
        progress(1, "setup")

    def embed(self, batch: EmbedBatch, progress: Progress) -> Float32:
        """Vectors of every row, float32 [rows, dims], in the order of the batch.

        Progress counts executed segments, or parts of them where the backend runs a segment in parts. Raises
        ``PluginError`` with invalid_request for a row the lane cannot hold or an id outside the vocabulary; the message
        names the item.
        """
        return self._compute(batch, self._vectors(batch.pooling, batch.normalize), self._width, progress)

    def rerank(self, sequences: Sequence[Int32], progress: Progress) -> Float32:
        """Raw scores of complete sequences, float32 [rows], in their order; batched and refused as ``embed`` does.

        A refusal names a sequence by its position. What a score is, a logit or a probability, is the family's.
        """
        way = self._scores()
        if not sequences:
            return np.empty(0, dtype=np.float32)
        names = [str(place) for place in range(len(sequences))]
        batch = EmbedBatch(np.concatenate(sequences), [len(row) for row in sequences], names, "cls", False)
        numbers = self._compute(batch, way, None, progress)
        read = self._settings.family.read_scores
        scores = numbers if read is None else np.asarray(read(numbers), dtype=np.float32)
        return scores.reshape(len(sequences))

    def unload(self) -> None:
        """Drop the executables and the weights; the engine cannot be used afterwards."""
        self._executables.clear()
        self._backend.close()

    def _vectors(self, pooling: Pooling, normalize: bool) -> _WayOut:
        label = f"embed-{pooling}-{'l2' if normalize else 'none'}"
        return _WayOut(label, self._configured(pooling, normalize), self._settings.family.head)

    def _scores(self) -> _WayOut:
        settings = self._settings
        if settings.family.score is None:
            raise PluginError("operation_mismatch", f"a model of family {settings.family.name} does not rerank")
        kinds = settings.family.segmented and settings.separator is not None
        return _WayOut("score", self._configured("cls", False), settings.family.score, kinds)

    def _compute(self, batch: EmbedBatch, way: _WayOut, width: int | None, progress: Progress) -> Float32:
        """Numbers of every row, float32 [rows, width]; a width of None is what the first call makes."""
        offsets = self._checked_offsets(batch)
        calls = self._plan(batch)
        numbers = np.empty((len(batch.counts), width or 0), dtype=np.float32)
        done = _Counter(progress)
        for call in calls:
            found = self._run(call, batch, way, offsets, done)
            if not numbers.shape[1]:
                numbers = np.empty((len(batch.counts), found.shape[1]), dtype=np.float32)
            numbers[list(call.row_indices)] = found
            self.rows_computed += len(call.row_indices)
        return numbers

    def _run(
        self, call: Call, batch: EmbedBatch, way: _WayOut, offsets: npt.NDArray[np.int64], done: Callable[[], None]
    ) -> Float32:
        ids, counts = _padded(call, batch, offsets)
        hidden: Any = None
        pieces = segments_for(way.config.layers, tokens_to_cut(way.config.layers, self._width, call.tokens))
        for segment in pieces:
            executable = self._executables.get(self._key(call, way, segment), self._build(way, segment))
            if isinstance(executable, ReportingExecutable):
                executable.done = done
            if way.kinds and segment.has_stem:
                hidden = executable(ids, counts, kinds=_kinds(ids, self._settings.separator))
            else:
                hidden = executable(ids, counts, hidden)
            done()
            # Buffers of a short call are small, and wanted again at once.
            if call.tokens > TOKENS_PER_SEGMENT:
                self._backend.between_segments()
        result: Float32 = hidden
        return result

    def _key(self, call: Call, way: _WayOut, segment: Segment) -> ExecutableKey:
        family = self._settings.family
        return ExecutableKey(
            family=family.name,
            task=way.label if segment.has_head else "hidden",
            segment=segment,
            regime=regime(call.bucket) if family.windowed else "full",
            dtype=self._settings.dtype,
            threads=self._settings.threads,
            width=self._width,
            shape=(len(call.row_indices), call.bucket) if self._backend.static_shapes else None,
            kinds=way.kinds and segment.has_stem,
        )

    def _build(self, way: _WayOut, segment: Segment) -> Build:
        family, config = self._settings.family, way.config

        def build(ops: TensorOps, inputs: Batch, hidden: Rows | None) -> Handle:
            x = family.stem(ops, config, inputs) if segment.has_stem else hidden
            for i in range(segment.first, segment.stop):
                x = family.block(ops, config, i, x, inputs)
            return ops.result(way.head(ops, config, x, inputs)) if segment.has_head else x

        return build

    def _plan(self, batch: EmbedBatch) -> list[Call]:
        try:
            return plan(batch.counts, self._ladder)
        except RowRefused as refusal:
            raise row_refused(batch.item_ids[refusal.row], refusal.problem) from refusal

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
            raise row_refused(batch.item_ids[row], problem)
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


def _kinds(ids: Int32, separator: int | None) -> Int32:
    """0 up to and including the first separator of a row, 1 after it (the pairs of BERT)."""
    is_separator = ids == separator
    kinds: Int32 = (np.cumsum(is_separator, axis=1) > is_separator).astype(np.int32)
    return kinds


def model_config(settings: ModelSettings, pooling: Pooling, normalize: bool) -> FamilyConfig:
    """The family's reading of config.json; raises ``PluginError`` with config_invalid where the model cannot be run."""
    config = _read_config(settings, pooling, normalize)
    _check_positions(settings, config)
    return config


def _read_config(settings: ModelSettings, pooling: Pooling, normalize: bool) -> FamilyConfig:
    family = settings.family
    try:
        return family.config(settings.config, pooling=pooling, normalize=normalize)
    except (TypeError, ValueError) as fault:
        raise _unusable(settings, fault) from fault


def _check_scoring(settings: ModelSettings, config: FamilyConfig) -> None:
    check = settings.family.check_scoring
    try:
        if check is not None:
            check(config)
    except ValueError as fault:
        raise _unusable(settings, fault) from fault


def _unusable(settings: ModelSettings, fault: Exception) -> PluginError:
    return PluginError("config_invalid", f"config.json of a {settings.family.name} model: {fault}")


def _check_positions(settings: ModelSettings, config: FamilyConfig) -> None:
    if settings.max_tokens > config.positions:
        raise PluginError(
            "config_invalid",
            f"max_tokens {settings.max_tokens} passes the {config.positions} positions of the model; lower max_tokens",
        )
