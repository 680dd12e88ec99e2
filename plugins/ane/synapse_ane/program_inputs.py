"""What a program is given for one row: prepared by the host, so that nothing but arithmetic is left to the engine.

Gathers and comparisons of integers would be computed off the Neural Engine and copied there; token embeddings would
be stored once more in every package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from synapse_ane.mil import Var

Float16 = npt.NDArray[np.float16]
Int32 = npt.NDArray[np.int32]

#: Names of the inputs made from a row's token count.
VISIBLE, SHARE, LAST = "visible", "share", "last"
HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class RowCounts:
    """A row's count as the program sees it, each [1, 1, 1, S] in half precision.

    ``visible`` is 1 for a token and 0 for padding, ``share`` 1 / count and 0, ``last`` 1 for the last token alone.
    """

    visible: Var
    share: Var
    last: Var


@dataclass(frozen=True, slots=True)
class Gathered:
    """An input whose columns the host looks up: rows of the tensor ``table`` by the ids named ``ids``."""

    name: str
    table: str
    ids: str


@dataclass(slots=True)
class InputPlan:
    """The inputs of one recording beside the counts, in the order they were met."""

    gathered: list[Gathered] = field(default_factory=list)

    def gather(self, table: str, ids: str) -> Gathered:
        """The input for a look-up, the same for the same look-up."""
        for known in self.gathered:
            if (known.table, known.ids) == (table, ids):
                return known
        self.gathered.append(Gathered(f"embedded_{len(self.gathered)}", table, ids))
        return self.gathered[-1]


def count_inputs(count: int, length: int) -> dict[str, Float16]:
    """The three inputs of a row of ``count`` tokens padded to ``length``.

    Raises:
        ValueError: the count is not between 1 and the length.

    """
    if not 1 <= count <= length:
        raise ValueError(f"a row of {count} tokens does not fit a program of {length}")
    visible = (np.arange(length) < count).astype(np.float16).reshape(1, 1, 1, length)
    last = np.zeros_like(visible)
    last[..., count - 1] = 1
    return {VISIBLE: visible, SHARE: (visible / np.float16(count)).astype(np.float16), LAST: last}


def looked_up(table: npt.NDArray[np.float32], ids: Sequence[int] | Int32) -> Float16:
    """Rows of ``table`` [V, C] as columns: [1, C, 1, S] in half precision."""
    columns = np.ascontiguousarray(table[np.asarray(ids)].T.astype(np.float16))
    return columns.reshape(1, table.shape[1], 1, len(ids))
