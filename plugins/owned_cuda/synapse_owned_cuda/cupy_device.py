"""A GPU by CuPy: its arrays, cuBLAS for products of matrices, and our kernels compiled for the device at hand.

Nobody has run this module on a GPU yet.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from synapse_owned_cuda.device import Argument, Array
from synapse_owned_cuda.kernel_table import ENTRY_POINTS, SOURCE


class CupyDevice:
    """Device ``place`` of the driver's order, from now on this thread's; ``RuntimeError`` when CuPy cannot use it."""

    def __init__(self, place: int = 0) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._cupy.cuda.Device(place).use()
        module = self._cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=("--std=c++17",))
        self._kernels = {name: module.get_function(name) for name in ENTRY_POINTS}

    @property
    def xp(self) -> Any:
        return self._cupy

    def launch(self, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Argument]) -> None:
        self._kernels[kernel]((*grid, 1, 1)[:3], (block, 1, 1), tuple(map(_passed, arguments)))

    def product(self, x: Array, w: Array) -> Array:
        # cuBLAS accumulates float16 in float32, and CuPy leaves TF32 off unless the environment asks for it.
        return self._cupy.matmul(x, w.T)

    def to_device(self, array: Any) -> Array:
        return self._cupy.asarray(array)

    def to_host(self, array: Array) -> Any:
        return self._cupy.asnumpy(array)

    def free_memory(self) -> int:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free)

    def limit_memory(self, size: int) -> None:
        # CuPy's OutOfMemoryError is a MemoryError, which the worker answers as oom.
        self._cupy.get_default_memory_pool().set_limit(size=size)

    def wait(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()


def _passed(argument: Argument) -> Any:
    if argument is None:
        return np.uintp(0)
    if isinstance(argument, int):
        return np.int32(argument)
    return np.float32(argument) if isinstance(argument, float) else argument
