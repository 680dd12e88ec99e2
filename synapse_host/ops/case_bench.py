"""What one case of the operations contract runs on: seeded inputs, handles in, arrays out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.dtypes import rounded
from synapse_host.ops.tensor_ops import Batch, Cache, Handle, TensorOps, Weight
from synapse_host.ops.weight_source import WeightSource

Float32: TypeAlias = npt.NDArray[np.float32]

#: What an array is, for backends that lay out rows and heads in an order of their own. ``picks`` is what argmax
#: gives, ``vectors`` what result gives; ids and counts are int32 and only go in.
HandleKind = Literal["rows", "heads", "ids", "counts", "weight", "logits", "picks", "vectors"]

#: Positions the rope tables of a case reach: far enough that an angle computed in half precision shows.
MAX_TOKENS = 400


class OpsUnderTest(Protocol):
    """An implementation of the operations, seen from the contract.

    ``make`` starts afresh; the handles of a case are made and read with the operations made last. A recording
    backend adds an input in ``to_handle`` and compiles and runs what leads to a handle in ``from_handle``.
    """

    #: The activation type the operations compute in.
    dtype: DType

    def make(self, weights: WeightSource, *, max_tokens: int) -> TensorOps:
        """Operations over ``weights``."""

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Handle:
        """``array`` (float32, or int32 for ids and counts) as a handle."""

    def from_handle(self, handle: Handle, kind: HandleKind) -> npt.NDArray[Any]:
        """The values of ``handle`` in the layout ``tensor_ops`` documents; picks are integers, the rest float32."""

    def new_cache(self) -> Cache:
        """An empty key-value cache."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One result of a case, the size of what was summed for it, and where it must agree (None: everywhere)."""

    values: npt.NDArray[Any]
    magnitude: float = 1.0
    reduction: int = 1
    valid: npt.NDArray[np.bool_] | None = None
    what: str = "the result"


@dataclass(frozen=True, slots=True)
class OpCase:
    """One use of one operation. ``weights`` are drawn before the operations are made."""

    op: str
    label: str
    run: Callable[[OpBench], list[Measured]]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}: {self.label}"


#: What drawn numbers are rounded to before anybody computes with them.
Grain: TypeAlias = Callable[[Float32], Float32]


def coarsest(x: Float32) -> Float32:
    """``x`` rounded to numbers every dtype holds: 8 significant bits within the range of half precision."""
    return rounded(rounded(x, "bf16"), "f16")


class SeededWeights:
    """The weights of one case: normal numbers that depend on the case, the name and the grain only."""

    def __init__(self, case: OpCase, grain: Grain) -> None:
        self._tensors = {name: grain(_normal(f"{case}/{name}", shape, 0.5)) for name, shape in case.weights.items()}

    def tensor(self, name: str) -> Float32:
        """The tensor ``name``; raises ``KeyError`` when the case has none of that name."""
        return self._tensors[name]


class OpBench:
    """Draws a case's inputs and carries arrays to and from the handles of one implementation.

    Without a ``grain`` the inputs are of the implementation's dtype.
    """

    def __init__(self, subject: OpsUnderTest, case: OpCase, grain: Grain | None = None) -> None:
        self._subject = subject
        self._case = case
        self._drawn = 0
        self._grain = grain or partial(rounded, dtype=subject.dtype)
        self.weights = SeededWeights(case, self._grain)
        self.ops = subject.make(self.weights, max_tokens=MAX_TOKENS)

    def draw(self, *shape: int, scale: float = 1.0) -> Float32:
        """Normal numbers, the same for every implementation, already rounded."""
        self._drawn += 1
        return self._grain(_normal(f"{self._case}#{self._drawn}", shape, scale))

    def rows(self, array: Float32) -> Handle:
        """``array`` [B, S, C] as a handle."""
        return self._subject.to_handle(array, "rows")

    def heads(self, array: Float32) -> Handle:
        """``array`` [B, N, S, D] as a handle."""
        return self._subject.to_handle(array, "heads")

    def logits(self, array: Float32) -> Handle:
        """``array`` [B, S, V] as a handle."""
        return self._subject.to_handle(array, "logits")

    def batch(self, counts: Sequence[int], length: int, start: int = 0, ids: npt.NDArray[Any] | None = None) -> Batch:
        """A batch of ``length`` positions; ids are 0 unless given."""
        tokens = np.zeros((len(counts), length), dtype=np.int32) if ids is None else ids.astype(np.int32)
        valid = np.array(counts, dtype=np.int32)
        return Batch(self._subject.to_handle(tokens, "ids"), self._subject.to_handle(valid, "counts"), start)

    def weight(self, name: str) -> Weight:
        """The case's weight ``name`` through the operation ``weight``."""
        return self.ops.weight(name, self._case.weights[name])

    def new_cache(self) -> Cache:
        """An empty key-value cache of the implementation."""
        return self._subject.new_cache()

    def read(self, handle: Handle, kind: HandleKind = "rows") -> npt.NDArray[Any]:
        """The values of ``handle``."""
        return self._subject.from_handle(handle, kind)


def _normal(key: str, shape: Sequence[int], scale: float) -> Float32:
    generator = np.random.default_rng(zlib.crc32(key.encode()))
    return (generator.standard_normal(tuple(shape)) * scale).astype(np.float32)
