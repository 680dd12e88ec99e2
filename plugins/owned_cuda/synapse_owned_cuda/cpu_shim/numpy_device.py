"""NumPy in CuPy's place: arrays and products are NumPy's, kernels are the real ones, run on the CPU.

A launch passes through with the grid, block and arguments the engine gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synapse_owned_cuda.cpu_shim.launching import CpuDevice
from synapse_owned_cuda.device import Argument, Array


class NumpyDevice:
    """The device of a machine without one. New arrays are full of NaN, so what no kernel wrote shows.

    ``launches`` are kernels with grid and block, and products, as ``product`` with rows and columns.
    """

    def __init__(self, cpu: CpuDevice) -> None:
        self._cpu = cpu
        self.launches: list[tuple[str, tuple[int, ...], int]] = []
        self.free, self.limit = 8 * 2**30, 0

    @property
    def xp(self) -> Any:
        return _Numpy

    def launch(self, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Argument]) -> None:
        self.launches.append((kernel, tuple(grid), block))
        for argument in arguments:
            assert not isinstance(argument, np.ndarray) or argument.flags.c_contiguous, f"{kernel} gets a strided array"
        self._cpu.launch(kernel, grid, block, arguments)

    def product(self, x: Array, w: Array) -> Array:
        assert x.dtype == w.dtype, f"a product of {x.dtype} and {w.dtype}"
        assert (x.ndim, w.ndim) == (2, 2), f"a product of {x.shape} and {w.shape}: CuPy makes a batch of it"
        self.launches.append(("product", (x.shape[0], w.shape[0]), 0))
        wide: Any = np.matmul(x.astype(np.float32), w.astype(np.float32).T)
        return wide.astype(x.dtype)

    def to_device(self, array: Any) -> Array:
        return np.array(array)

    def to_host(self, array: Array) -> Any:
        return np.array(array)

    def free_memory(self) -> int:
        return self.free

    def limit_memory(self, size: int) -> None:
        self.limit = size

    def wait(self) -> None:
        """Every launch is done when it returns."""


class _Numpy:
    """NumPy as the operations see it; its empty arrays are not empty by chance."""

    float32, float16, int32 = np.float32, np.float16, np.int32
    arange, argmax, ascontiguousarray = np.arange, np.argmax, np.ascontiguousarray
    broadcast_to, concatenate, isnan, where = np.broadcast_to, np.concatenate, np.isnan, np.where

    @staticmethod
    def empty(shape: Any, dtype: Any) -> Any:
        """An array of NaN."""
        return np.full(shape, np.nan, dtype=dtype)
