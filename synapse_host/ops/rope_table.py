"""The angles of rotary embeddings, computed once for every backend that keeps them in a table.

Source: RoFormer (Su et al. 2021), section 3.2.2; linear scaling divides the position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def rope_table(theta: float, d: int, scaling: float | None, positions: int) -> npt.NDArray[np.float32]:
    """Cosine and sine as [2, positions, d / 2]; ``scaling`` divides the position (linear scaling)."""
    rates = np.power(float(theta), -np.arange(0, d, 2, dtype=np.float64) / d)
    angles = np.outer(np.arange(positions, dtype=np.float64) / (scaling or 1.0), rates)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
