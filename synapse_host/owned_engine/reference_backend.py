"""The numpy reference as a backend of the owned engine: nothing is compiled, every call runs the family eagerly."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Batch
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

    def between_segments(self) -> None:
        """Nothing is held between segments."""

    def close(self) -> None:
        self._weights.close()
