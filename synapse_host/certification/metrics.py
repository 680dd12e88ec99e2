"""Agreement of a lane's vectors with the reference's, as numbers.

Pure numpy on float64. Rows are texts; both arrays have the same rows in the same order.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.tolerances import TIE_MARGIN
from synapse_host.values import value_object

Vectors: TypeAlias = npt.NDArray[np.floating]


@value_object
class Agreement:
    """How close two sets of vectors are."""

    texts: int
    mean_cosine: float
    min_cosine: float
    max_abs_error: float
    max_norm_error: float
    worst_decile_overlap: float


def agreement(lane: Vectors, reference: Vectors) -> Agreement:
    """Compare ``lane`` with ``reference``, both [texts, dims]; raises ``ValueError`` when the shapes differ."""
    if lane.shape != reference.shape:
        raise ValueError(f"the lane gave vectors of shape {lane.shape} and the reference {reference.shape}")
    ours, theirs = lane.astype(np.float64), reference.astype(np.float64)
    our_norms, their_norms = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    alike = cosines(ours, theirs)
    return Agreement(
        texts=len(ours),
        mean_cosine=float(alike.mean()),
        min_cosine=float(alike.min()),
        max_abs_error=float(np.abs(ours - theirs).max()),
        max_norm_error=float(np.abs(our_norms / their_norms - 1).max()),
        worst_decile_overlap=worst_decile_overlap(ours, theirs),
    )


def cosines(ours: Vectors, theirs: Vectors) -> Vectors:
    """The cosine of each row of the one to the same row of the other."""
    sizes = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    with np.errstate(invalid="ignore"):  # a row of zeros has no direction: NaN, which no floor is met by
        return np.asarray(np.einsum("ij,ij->i", ours, theirs) / sizes)


def worst_decile_overlap(lane: Vectors, reference: Vectors) -> float:
    """Mean overlap of nearest-neighbour lists over the tenth of the texts where it is lowest, 0 to 1.

    For each text the lane's ``k = max(1, texts // 10)`` nearest others are counted as right when the reference puts
    them within ``TIE_MARGIN`` of its own k nearest.
    """
    texts = len(lane)
    if texts < 2:
        return 1.0
    k = max(1, texts // 10)
    ours, theirs = _similarities(lane), _similarities(reference)
    nearest = np.argsort(-ours, axis=1, kind="stable")[:, :k]
    thresholds = np.sort(theirs, axis=1)[:, -k] - TIE_MARGIN
    right = np.take_along_axis(theirs, nearest, axis=1) >= thresholds[:, None]
    overlaps = np.sort(right.mean(axis=1))
    return float(overlaps[:k].mean())


def _similarities(vectors: Vectors) -> Vectors:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -np.inf)
    return np.asarray(similarities)
