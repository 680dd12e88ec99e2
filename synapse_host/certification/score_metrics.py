"""Agreement of a lane's rerank scores with the reference's, as numbers. Pure numpy on float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.tokenization.pair_template import ScoreKind
from synapse_host.tolerances import TIE_MARGIN
from synapse_host.values import value_object

Scores: TypeAlias = npt.NDArray[np.floating]


@value_object
class ScoreAgreement:
    """How close two sets of scores are.

    ``max_probability_error`` is over the scores as probabilities, the sigmoid of logits. ``max_logit_error`` is over
    logits, in units of the reference's logit where that is larger than 1; None where scores are probabilities.
    """

    pairs: int
    pearson: float
    max_probability_error: float
    max_logit_error: float | None
    kendall_tau: float


def score_agreement(lane: Scores, reference: Scores, kind: ScoreKind, pools: Sequence[Sequence[int]]) -> ScoreAgreement:
    """Compare ``lane`` with ``reference``, both [pairs]; each pool holds the places of one query's candidates.

    Raises ``ValueError`` when the shapes differ.
    """
    if lane.shape != reference.shape:
        raise ValueError(f"the lane gave scores of shape {lane.shape} and the reference {reference.shape}")
    ours, theirs = lane.astype(np.float64), reference.astype(np.float64)
    likely, wanted = (ours, theirs) if kind == "probability" else (_sigmoid(ours), _sigmoid(theirs))
    logit_error = float((np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))).max())
    return ScoreAgreement(
        pairs=len(ours),
        pearson=pearson(ours, theirs),
        max_probability_error=float(np.abs(likely - wanted).max()),
        max_logit_error=logit_error if kind == "logit" else None,
        kendall_tau=kendall_tau(likely, wanted, pools),
    )


def pearson(ours: Scores, theirs: Scores) -> float:
    """Pearson's correlation; NaN, which no floor is met by, where one of the two does not vary."""
    a, b = ours - ours.mean(), theirs - theirs.mean()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 0 else float("nan")


def kendall_tau(ours: Scores, theirs: Scores, pools: Sequence[Sequence[int]]) -> float:
    """(concordant - discordant) / (concordant + discordant + ties) over the pairs of each pool; 1 where none counts.

    Only candidates that the reference puts more than ``TIE_MARGIN`` apart count, as in the parity evaluator (original
    facts section 6).
    """
    agreed = counted = 0
    for pool in pools:
        first, second = np.triu_indices(len(pool), k=1)
        places = np.asarray(pool)
        apart = theirs[places[first]] - theirs[places[second]]
        found = ours[places[first]] - ours[places[second]]
        clear = np.abs(apart) >= TIE_MARGIN
        agreed += int(np.sum(np.sign(found[clear]) * np.sign(apart[clear])))
        counted += int(clear.sum())
    return agreed / counted if counted else 1.0


def _sigmoid(logits: Scores) -> Scores:
    # The form with tanh overflows nowhere.
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))
