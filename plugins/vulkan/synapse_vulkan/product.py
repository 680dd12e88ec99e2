"""The variants of the matrix product and their dispatch. Pure.

Every variant sums over k in order with one fma a step, so which of them runs changes speed and no bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from synapse_host.ops.tensor_ops import Activation
from synapse_vulkan.device_facts import Limits

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
    shared_bytes: int = 0

    @property
    def invocations(self) -> int:
        """Invocations of one workgroup."""
        return self.shape[0]

    def groups(self, rows: int, stored_quads: int) -> tuple[int, int, int]:
        """Workgroups of a product."""
        return -(-stored_quads // self.group_quads), -(-rows // self.group_rows), 1

    def constants(self, act: Activation | None, bias: bool, aligned: bool) -> tuple[int, ...]:
        """Specialisation constants 0 to 5 of the kernel."""
        return (*self.shape, ACTIVATIONS[act], int(bias), int(aligned))


def direct(lanes: int, rows: int, quads: int) -> Variant:
    """Registers alone: ``rows`` by ``4 * quads`` sums an invocation, ``lanes`` invocations along the columns."""
    return Variant(f"direct-{rows}x{4 * quads}", "gemm_direct", rows, lanes * quads, (lanes, rows, quads))


def tiled(rows: int) -> Variant:
    """A workgroup of 256 stages ``16 * rows`` rows and 64 columns of 16 steps; ``rows`` by 4 sums an invocation."""
    staged = 4 * 16 * (16 * rows + 4) + 4 * 16 * 64
    return Variant(f"tiled-{16 * rows}x64", "gemm_tiled", 16 * rows, 16, (256, rows, 1), staged)


#: For one vector a text: as little as possible is computed for rows that are not there.
NARROW = direct(64, 2, 1)
#: Rows of the vectors of a small batch, which are their own class of products.
NARROW_ROWS = 8
#: Up to this many rows, a query or two, large tiles leave most of a card idle.
FEW_ROWS = 64


@dataclass(frozen=True, slots=True)
class Products:
    """The variants a device is served with: ``many`` rows, ``few`` rows where another is faster for them, and fewer."""

    many: Variant
    few: Variant | None = None
    narrow: Variant = NARROW

    @classmethod
    def only(cls, variant: Variant) -> Products:
        """``variant`` for any number of rows."""
        return cls(variant, variant, variant)

    def for_rows(self, rows: int) -> Variant:
        """The variant for a product of that many rows."""
        if rows <= NARROW_ROWS:
            return self.narrow
        return self.many if self.few is None or rows > FEW_ROWS else self.few


#: What is measured at load; the first is taken where nothing was measured.
VARIANTS: tuple[Variant, ...] = (direct(8, 16, 4), direct(32, 8, 2), tiled(4), tiled(8))


def candidates(limits: Limits, *, software: bool) -> tuple[Variant, ...]:
    """The variants worth a measurement on a device: those it has the invocations and the shared memory for.

    A software device shares no memory that is faster than any other; of the tiled ones one is enough to show that.
    """
    able = [
        variant
        for variant in VARIANTS
        if variant.invocations <= min(limits.invocations, limits.group_width)
        and variant.shared_bytes <= limits.shared_bytes
    ]
    return tuple(able[:3] if software else able)


def padded(size: int, step: int) -> int:
    """``size`` rounded up to a multiple of ``step``."""
    return -(-size // step) * step
