"""The numpy reference as a backend of the owned engine and decoder: nothing is compiled, every call runs eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.reference_attention import ReferenceCache
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine.decoder import Reading
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey, Hidden
from synapse_host.owned_engine.weights import CheckpointWeights

Int32: TypeAlias = npt.NDArray[np.int32]


class ReferenceBackend:
    """Eager execution over one checkpoint; segments pass plain arrays."""

    static_shapes = False

    def __init__(self, weights: CheckpointWeights, *, max_tokens: int) -> None:
        self._weights = weights
        self._ops = ReferenceOps(weights, max_tokens=max_tokens)

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        def run(ids: Int32, counts: Int32, hidden: Hidden | None = None, kinds: Int32 | None = None) -> Any:
            return build(self._ops, Batch(ids, counts, kinds=kinds), hidden)

        return run

    def session(self, reading: Reading) -> ReferenceSession:
        """A text of which nothing is read yet."""
        return ReferenceSession(self._ops, reading)

    def between_segments(self) -> None:
        """Nothing is held between segments."""

    def close(self) -> None:
        self._weights.close()


class ReferenceSession:
    """One text and the keys and values of what was read of it."""

    def __init__(self, ops: ReferenceOps, reading: Reading) -> None:
        self._ops = ops
        self._reading = reading
        self._cache = ReferenceCache()
        self._read = 0

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` after all read before; the likeliest token to follow."""
        row = np.array([ids], dtype=np.int32)
        batch = Batch(row, np.array([len(ids)], dtype=np.int32), start=self._read)
        self._read += len(ids)
        return int(self._reading(self._ops, batch, self._cache)[0, 0])
