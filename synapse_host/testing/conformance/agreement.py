"""When two vectors of one row count as the same: equal bits where the backend promises them, else a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.tolerances import END_TO_END


@dataclass(frozen=True, slots=True)
class Promise:
    """What a backend promises about one row in different company; ``exact`` is its ``batch_invariant``."""

    dtype: DType
    exact: bool

    def kept(self, wanted: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> bool:
        """Whether ``found`` may stand for ``wanted``."""
        return wanted.tobytes() == found.tobytes() if self.exact else within_bound(self.dtype, wanted, found)

    def __str__(self) -> str:
        """The promise in words, for messages."""
        return "bit for bit" if self.exact else f"within the bound of {self.dtype}"


def within_bound(dtype: DType, wanted: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> bool:
    """Whether ``found`` is as near to ``wanted`` as ``ops.tolerances.END_TO_END`` asks of unit vectors."""
    cosine, error = distance(wanted, found)
    bound = END_TO_END[dtype]
    return cosine >= bound.min_cosine and error <= bound.max_abs_error


def distance(wanted: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Cosine, and the largest difference of a component after both were divided by the length of ``wanted``."""
    left, right = wanted.astype(np.float64), found.astype(np.float64)
    length = float(np.linalg.norm(left))
    cosine = float(left @ right) / (length * float(np.linalg.norm(right)))
    return cosine, float(np.abs(left - right).max()) / length
