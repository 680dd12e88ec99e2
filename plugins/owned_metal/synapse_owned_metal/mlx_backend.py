"""One model on MLX: the graphs the owned engine calls, and the sessions the owned decoder reads texts with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType, PluginError
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine.decoder import Reading
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey, Hidden
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_owned_metal.device import Device
from synapse_owned_metal.key_value_cache import KeyValueCache
from synapse_owned_metal.mlx_ops import MlxOps, RopeTables
from synapse_owned_metal.mlx_weights import MlxWeights
from synapse_owned_metal.runtime import mx

Int32: TypeAlias = npt.NDArray[np.int32]
#: Words of MLX's message when the device has no memory left.
_OUT_OF_MEMORY = ("malloc", "Insufficient Memory", "out of memory")
#: Words of those where a kernel cannot be compiled or found.
_NOT_COMPILED = (
    "Unable to build metal library",
    "Unable to load kernel",
    "Unable to load function",
    "Failed to load the metallib",
    "Failed to compile",
)
#: Characters of a compiler's log that a message has room for.
_MOST_TOLD = 500


class DeviceOwner:
    """The one thread that may use the device: arrays belong to the stream of the thread that made them."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A piece of work of the owner.

        Raises:
            RuntimeError: another thread asks.
            PluginError: oom, when the device has no memory left; backend_missing, when a kernel does not compile.

        """
        if threading.get_ident() != self._thread:
            raise RuntimeError("another thread than the one that loaded the model uses it; call it from that one")
        try:
            yield
        except RuntimeError as failure:
            if any(word in str(failure) for word in _OUT_OF_MEMORY):
                raise PluginError("oom", f"{failure}; send shorter rows or load a smaller model") from failure
            if any(word in str(failure) for word in _NOT_COMPILED):
                told = " ".join(str(failure).split())[:_MOST_TOLD]
                raise PluginError(
                    "backend_missing",
                    f"MLX {mx.__version__} cannot compile a kernel on {mx.default_device()} ({told}); update the "
                    "system, or reinstall it with: pip install --force-reinstall mlx",
                ) from failure
            raise


class MlxBackend:
    """The weights of one model on the device, and what is made executable of them.

    Where graphs are compiled a key stands for one shape; otherwise every call runs as it is written.
    """

    def __init__(self, weights: CheckpointWeights, *, device: Device, max_tokens: int, dtype: DType) -> None:
        mx.set_default_device(mx.gpu if device.kind == "metal" else mx.cpu)
        self._owner = DeviceOwner()
        self._compiles = device.compiles
        self._dtype = dtype
        self._tables = RopeTables(max_tokens)
        self._weights = MlxWeights.taken_from(weights, dtype)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device."""
        return self._weights.bytes

    @property
    def static_shapes(self) -> bool:
        """True when every (rows, bucket) gets a graph of its own."""
        return self._compiles

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        run: Callable[..., Any] = self._written(key, build)
        return MlxSegment(self._owner, mx.compile(run) if self._compiles else run, key)

    def session(self, reading: Reading) -> MlxSession:
        """A text of which nothing is read yet."""
        return MlxSession(self._owner, partial(MlxOps, self._weights, self._tables, dtype=self._dtype), reading)

    def between_segments(self) -> None:
        """The cache limit bounds what freed buffers take."""

    def close(self) -> None:
        self._weights.close()
        mx.clear_cache()

    def _written(self, key: ExecutableKey, build: Build) -> Callable[..., Any]:
        """The segment as a function of arrays: ids, counts, and hidden rows or kinds where the key has them."""
        weights, tables = self._weights, self._tables

        def run(ids: Any, counts: Any, *more: Any) -> Any:
            ops = MlxOps(weights, tables, dtype=key.dtype, regime=key.regime)
            kinds = more[0] if key.kinds else None
            return build(ops, Batch(ids, counts, kinds=kinds), None if key.segment.has_stem else more[0])

        return run


class MlxSegment:
    """One segment, ready to run; a call returns when the device is done with it."""

    def __init__(self, owner: DeviceOwner, run: Callable[..., Any], key: ExecutableKey) -> None:
        self._owner = owner
        self._run = run
        self._ends = key.segment.has_head

    def __call__(self, ids: Int32, counts: Int32, hidden: Hidden | None = None, kinds: Int32 | None = None) -> Any:
        more = [hidden] if hidden is not None else [] if kinds is None else [mx.array(kinds)]
        with self._owner.turn():
            found = self._run(mx.array(ids), mx.array(counts), *more)
            mx.eval(found)
            return np.array(found) if self._ends else found


class MlxSession:
    """One text, read piece by piece, and the keys and values of what was read of it."""

    def __init__(self, owner: DeviceOwner, new_ops: Callable[[], MlxOps], reading: Reading) -> None:
        self._owner = owner
        self._new_ops = new_ops
        self._reading = reading
        self._cache = KeyValueCache()
        self._read = 0

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` after all read before; the likeliest token to follow."""
        row, count = mx.array([list(ids)], dtype=mx.int32), mx.array([len(ids)], dtype=mx.int32)
        with self._owner.turn():
            picks = self._reading(self._new_ops(), Batch(row, count, start=self._read), self._cache)
            mx.eval(picks, *self._cache.arrays())
        self._read += len(ids)
        return int(picks[0, 0].item())
