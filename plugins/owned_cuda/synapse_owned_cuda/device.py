"""What the operations need of a device: room for arrays, products of matrices, and launches of our kernels.

CuPy's arrays and NumPy's share the few methods used here, so the same operations run on both: on a GPU by
``cupy_device``, in tests by ``cpu_shim.numpy_device``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

#: An array on the device, C-contiguous wherever a kernel gets it.
Array: TypeAlias = Any
#: What a kernel takes: an array is a pointer, None a null pointer, an int 32 bits, a float single precision.
Argument: TypeAlias = Any


class Device(Protocol):
    """One device. ``xp`` is the array module, NumPy or CuPy."""

    @property
    def xp(self) -> Any:
        """The array module."""

    def launch(self, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Argument]) -> None:
        """Run a kernel of ``kernels.cu`` over ``grid`` blocks of ``block`` threads."""

    def product(self, x: Array, w: Array) -> Array:
        """``x · wᵀ`` of [T, C] and [O, C] of one type, accumulated in float32, in that type."""

    def to_device(self, array: Any) -> Array:
        """A NumPy array's copy on the device."""

    def to_host(self, array: Array) -> Any:
        """A device array's copy as a NumPy array; waits until it is computed."""

    def free_memory(self) -> int:
        """Bytes of the device nobody has taken."""

    def limit_memory(self, size: int) -> None:
        """Let arrays take no more than ``size`` bytes in all; a later one raises ``MemoryError``."""

    def wait(self) -> None:
        """Return when everything launched is done."""
