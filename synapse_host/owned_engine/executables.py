"""What a backend is asked to make executable, and the cache of what it made.

The engine knows keys and callables; how a callable came to be (eager arrays, a compiled graph) is the backend's
business behind ``GraphBackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Batch, Handle, Rows, TensorOps
from synapse_host.owned_engine.segments import Segment
from synapse_host.owned_engine.shape_policy import Regime

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    TokenIds = npt.NDArray[np.int32]

#: Hidden rows between two segments: whatever the backend's executables return and take.
Hidden: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class ExecutableKey:
    """Everything that makes one executable different from another.

    ``task`` names the way out, pooling and normalisation included. ``width`` is the features of hidden rows. ``kinds``
    says that a segment with the stem takes the kind of every token as well.
    ``shape`` is (rows, bucket) for backends that compile one executable per shape and None for those whose executables
    take any.
    """

    family: str
    task: str
    segment: Segment
    regime: Regime
    dtype: DType
    threads: int
    width: int
    shape: tuple[int, int] | None = None
    kinds: bool = False


#: Writes a segment over a backend's ops: (ops, batch, hidden rows or None) to hidden rows or the result.
Build: TypeAlias = Callable[[TensorOps, Batch, Rows | None], Handle]


class Executable(Protocol):
    """One segment, ready to run."""

    def __call__(
        self, ids: TokenIds, counts: TokenIds, hidden: Hidden | None = None, kinds: TokenIds | None = None
    ) -> Any:
        """Run on ids i32[B, S] and counts i32[B]; a key with ``kinds`` gets them as i32[B, S].

        Returns float32 [B, dims] when the segment has the head, else hidden rows for the next segment. The array may
        be reused by the next call.
        """


class ReportingExecutable:
    """An executable that runs in several parts: it calls ``done`` after each but the last."""

    done: Callable[[], None] = staticmethod(lambda: None)


class GraphBackend(Protocol):
    """One device's way from tensor operations to something that runs."""

    @property
    def static_shapes(self) -> bool:
        """True when every (rows, bucket) needs an executable of its own."""

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        """Make one segment executable; raises ``ValueError`` when a tensor is missing or of another shape."""

    def between_segments(self) -> None:
        """Give back buffers of the segment that just ran, where that pays."""

    def close(self) -> None:
        """Drop everything the backend holds for the model."""


class ExecutableCache:
    """Executables by key, made on first use."""

    def __init__(self, backend: GraphBackend) -> None:
        self._backend = backend
        self._made: dict[ExecutableKey, Executable] = {}

    def get(self, key: ExecutableKey, build: Build) -> Executable:
        """The executable of ``key``, made by ``build`` when it is asked for the first time."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._backend.executable(key, build)
        return found

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        """Forget every executable."""
        self._made.clear()
