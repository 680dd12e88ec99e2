"""The floors a lane must reach to be certified, and the judgement against them. Pure.

The two floors of the contract (mean cosine, worst-decile overlap) come from the settings. They are wide enough for any
honest precision, so a wrong epsilon or activation passes them; the floors per dtype in ``synapse_host.tolerances`` are
what catches those. They are set about four times looser than the largest error measured on the reference models.
"""

from __future__ import annotations

from synapse_host.certification.metrics import Agreement
from synapse_host.certification.score_metrics import ScoreAgreement
from synapse_host.hookspecs import DType
from synapse_host.tolerances import FLOORS, MAX_NORM_ERROR, MIN_KENDALL_TAU, MIN_PEARSON, SCORE_LIMITS
from synapse_host.values import value_object

__all__ = [
    "FLOORS",
    "MAX_NORM_ERROR",
    "MIN_KENDALL_TAU",
    "MIN_PEARSON",
    "SCORE_LIMITS",
    "Gates",
    "failures",
    "score_failures",
]


@value_object
class Gates:
    """What the settings ask of every lane."""

    mean_cosine: float
    decile_overlap: float


def failures(dtype: DType, gates: Gates, texts: Agreement, magnified: Agreement | None) -> list[str]:
    """Every floor that was missed, as a sentence with both numbers; an empty list certifies.

    ``magnified`` is None where the engine's self-check has run the magnifying models.
    """
    floors = FLOORS[dtype]
    checks = [
        ("mean cosine", texts.mean_cosine, gates.mean_cosine),
        ("worst-decile rank overlap", texts.worst_decile_overlap, gates.decile_overlap),
        (f"min cosine in {dtype}", texts.min_cosine, floors.min_cosine),
    ]
    if magnified is not None:
        name = f"min cosine on the magnifying model in {dtype}"
        checks.append((name, magnified.min_cosine, floors.magnified_min_cosine))
    missed = [f"{name} is {value:.7f}, below {floor}" for name, value, floor in checks if not value >= floor]
    if not texts.max_norm_error <= MAX_NORM_ERROR:
        missed.append(f"vector length is off by {texts.max_norm_error:.2e}, above {MAX_NORM_ERROR}")
    return missed


def score_failures(dtype: DType, pairs: ScoreAgreement, magnified: ScoreAgreement | None) -> list[str]:
    """The same for a reranker."""
    limits = SCORE_LIMITS[dtype]
    floors = [("Pearson correlation", pairs.pearson, MIN_PEARSON), ("Kendall tau", pairs.kendall_tau, MIN_KENDALL_TAU)]
    if magnified is not None:
        name = f"Pearson correlation on the magnifying model in {dtype}"
        floors.append((name, magnified.pearson, limits.magnified_min_pearson))
    missed = [f"{name} is {value:.7f}, below {floor}" for name, value, floor in floors if not value >= floor]
    ceilings = (
        (f"probability error in {dtype}", pairs.max_probability_error, limits.max_probability_error),
        (f"logit error in {dtype}", pairs.max_logit_error, limits.max_logit_error),
    )
    for name, error, ceiling in ceilings:
        if error is not None and not error <= ceiling:
            missed.append(f"{name} is {error:.2e}, above {ceiling}")
    return missed
