"""A GPU by CuPy: its arrays, cuBLAS for products of matrices, and our kernels compiled for the device at hand.

Nobody has run this module on a GPU yet.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from synapse_owned_cuda.device import Argument, Array
from synapse_owned_cuda.kernel_table import ENTRY_POINTS, SOURCE

#: ``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`` of cublasMath_t: parts of a sum of halves are joined in float32.
_SUMS_STAY_WIDE = 16


class CupyDevice:
    """Device ``place`` of the driver's order, from now on this thread's; ``RuntimeError`` when CuPy cannot use it."""

    def __init__(self, place: int = 0) -> None:
        # Read by CuPy at its first product: TF32 from the host's environment would move bits of a certified lane.
        os.environ["CUPY_TF32"] = "0"
        self._cupy: Any = importlib.import_module("cupy")
        self._cupy.cuda.Device(place).use()
        self._pool: Any = self._cupy.get_default_memory_pool()
        self._cupy.cuda.set_allocator(self._allocated)
        libraries: Any = importlib.import_module("cupy_backends.cuda.libs")
        libraries.cublas.setMathMode(self._cupy.cuda.get_cublas_handle(), _SUMS_STAY_WIDE)
        module = self._cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("--std=c++17",))
        self._kernels = {name: module.get_function(name) for name in ENTRY_POINTS}

    @property
    def xp(self) -> Any:
        return self._cupy

    def launch(self, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Argument]) -> None:
        self._kernels[kernel]((*grid, 1, 1)[:3], (block, 1, 1), tuple(map(_passed, arguments)))

    def product(self, x: Array, w: Array) -> Array:
        # By cublasGemmEx: float16 accumulated in float32, and no TF32.
        return self._cupy.matmul(x, w.T)

    def to_device(self, array: Any) -> Array:
        return self._cupy.asarray(array)

    def to_host(self, array: Array) -> Any:
        return self._cupy.asnumpy(array)

    def free_memory(self) -> int:
        # What an earlier model left in the pool is nobody's, and the driver counts it as taken.
        self._pool.free_all_blocks()
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free)

    def limit_memory(self, size: int) -> None:
        # CuPy's OutOfMemoryError is a MemoryError, which the worker answers as oom.
        self._pool.set_limit(size=size)

    def wait(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def _allocated(self, size: int) -> Any:
        """Memory for an array, of the pool.

        What the pool keeps for later counts against its limit, and it gives none of that back when the limit is met:
        rows of ever new lengths would end a lane that has room (CuPy 14, ``SingleDeviceMemoryPool``).
        """
        try:
            return self._pool.malloc(size)
        except MemoryError:
            self._pool.free_all_blocks()
            return self._pool.malloc(size)


def _passed(argument: Argument) -> Any:
    if argument is None:
        return np.uintp(0)
    if isinstance(argument, int):
        return np.int32(argument)
    return np.float32(argument) if isinstance(argument, float) else argument
