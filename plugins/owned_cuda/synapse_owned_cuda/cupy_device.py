"""A GPU by CuPy: its arrays, cuBLAS for products of matrices, and our kernels compiled for the device at hand.

Nobody has run this module on a GPU yet.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from synapse_host.hookspecs import PluginError
from synapse_owned_cuda.device import Argument, Array
from synapse_owned_cuda.kernel_table import ENTRY_POINTS, SOURCE

#: ``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`` of cublasMath_t: parts of a sum of halves are joined in float32.
_SUMS_STAY_WIDE = 16
#: What CuPy raises where it cannot compile; by name, so that CuPy is not imported.
_COMPILER_FAULTS = ("CompileException", "NVRTCError")
#: Words of the driver's refusal of what was compiled; it has many others for faults of a device.
_REFUSED_CODE = ("NO_BINARY_FOR_GPU", "INVALID_PTX", "INVALID_IMAGE", "UNSUPPORTED_PTX_VERSION", "JIT_COMPILER")
#: Characters of a compiler's log that a message has room for.
_MOST_TOLD = 500


class CupyDevice:
    """Device ``place`` of the driver's order, from now on this thread's.

    Raises:
        RuntimeError: CuPy cannot use the device.
        PluginError: backend_missing, when the kernels cannot be compiled for it.

    """

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
        with _compile_faults_typed(f"device {place}", str(self._cupy.__version__)):
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


@contextmanager
def _compile_faults_typed(device: str, cupy: str) -> Iterator[None]:
    try:
        yield
    except Exception as failure:
        names, text = {known.__name__ for known in type(failure).__mro__}, str(failure)
        if names.isdisjoint(_COMPILER_FAULTS) and not any(word in text for word in _REFUSED_CODE):
            raise
        # Without its cause, which may be the driver's: nothing is lost on a device that refused code.
        raise PluginError(
            "backend_missing",
            f"CuPy {cupy} cannot compile {SOURCE.name} for {device} ({_first_fault(text)}); update the driver, or "
            "reinstall what compiles with: pip install --force-reinstall 'synapse-host[cuda]'",
        ) from None


def _first_fault(log: str) -> str:
    """The first line of a log that names an error, or its first."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "without a word")
    return found[:_MOST_TOLD]


def _passed(argument: Argument) -> Any:
    if argument is None:
        return np.uintp(0)
    if isinstance(argument, int):
        return np.int32(argument)
    return np.float32(argument) if isinstance(argument, float) else argument
