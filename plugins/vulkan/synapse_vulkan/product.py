"""The variants of the matrix product and their dispatch. Pure.

Every variant sums over k in order with one fma a step, so which of them runs changes speed and no bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from synapse_host.ops.tensor_ops import Activation

#: Numbers of the activations in ``arithmetic.glsl``.
ACTIVATIONS: Mapping[Activation | None, int] = {
    None: 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "silu": 3,
    "tanh": 4,
    "relu": 5,
}
#: Columns of a stored matrix are filled up to a multiple of this.
COLUMN_STEP = 16
#: Rows of a stored matrix are filled up to a multiple of this.
DEPTH_STEP = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a product: a kernel, the rows and quads of columns one workgroup covers, its constants."""

    name: str
    kernel: str
    group_rows: int
    group_quads: int
    shape: tuple[int, int, int]

    def groups(self, rows: int, stored_quads: int) -> tuple[int, int, int]:
        """Workgroups of a product."""
        return -(-stored_quads // self.group_quads), -(-rows // self.group_rows), 1

    def constants(self, act: Activation | None, bias: bool, aligned: bool) -> tuple[int, ...]:
        """Specialisation constants 0 to 5 of the kernel."""
        return (*self.shape, ACTIVATIONS[act], int(bias), int(aligned))


def direct(lanes: int, rows: int, quads: int) -> Variant:
    """Registers alone: ``rows`` by ``4 * quads`` sums an invocation, ``lanes`` invocations along the columns."""
    return Variant(f"direct-{rows}x{4 * quads}", "gemm_direct", rows, lanes * quads, (lanes, rows, quads))


#: Few rows, such as one vector a text: as little as possible is computed for rows that are not there.
NARROW = direct(64, 2, 1)
#: Up to this many rows ``NARROW`` is taken whatever the device likes.
NARROW_ROWS = 8
#: What is measured at load; the first is taken where nothing was measured.
VARIANTS: tuple[Variant, ...] = (
    direct(8, 16, 4),
    direct(32, 8, 2),
    Variant("tiled-64x64", "gemm_tiled", 64, 16, (256, 4, 1)),
)


def padded(size: int, step: int) -> int:
    """``size`` rounded up to a multiple of ``step``."""
    return -(-size // step) * step
