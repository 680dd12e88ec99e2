"""Whether a lane's figures are those of its fixture, by the gates of the parity evaluator (original facts section 6).

Pure, on plain floats: a check at load has a handful of rows, and the host should not import numpy for it.

Vectors: length within 1e-3 of 1 and cosine of 0.999 or more. Where only the first components of a vector are kept, they
may be as far off, in proportion to their size, as two unit vectors of that cosine. Scores: the probability within the
tolerance of the lane's class, and no two candidates of a pool in another order than the reference has them, unless it
has them closer than the tie margin.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import Any, Literal

from synapse_host.certification.self_check_fixtures import Fixture, FixtureCase, Readout
from synapse_host.tokenization.pair_template import ScoreKind
from synapse_host.tolerances import (
    MAX_NORM_ERROR,
    SELF_CHECK_MIN_COSINE,
    SELF_CHECK_SCORE_ERROR,
    TIE_MARGIN,
    distance_of,
)
from synapse_host.values import value_object

#: What a lane computes in, as far as tolerances go: float32 lanes are held tighter on scores.
ToleranceClass = Literal["fp32", "fp16"]


@value_object
class Verdict:
    """The outcome of one run: ``reason`` names case, figure and bound of the first miss, None when all passed."""

    passed: bool
    reason: str | None
    figures: Mapping[str, Any] = field(default_factory=dict)


def judge_vectors(fixture: Fixture, raw: bytes, dims: int) -> Verdict:
    """Judge the lane's vectors of ``fixture.rows``: little-endian float32, one row of ``dims`` per case, in order."""
    rows = _rows(raw, dims)
    unusable = _misshapen(fixture, len(rows), dims) or _not_finite(fixture, rows)
    if unusable is not None:
        return unusable
    cosines, norms, prefixes = [1.0], [0.0], [0.0]
    missed: list[str] = []
    for case, row in zip(fixture.cases, rows, strict=True):
        norms.append(abs(_norm(row) - 1.0))
        missed += _beyond(case, "length of the vector, off 1 by", norms[-1], MAX_NORM_ERROR)
        if case.whole:
            cosines.append(_cosine(row, case.expected))
            missed += _below(case, "cosine", cosines[-1], SELF_CHECK_MIN_COSINE)
        else:
            prefixes.append(_relative_distance(row, case.expected))
            bound = distance_of(SELF_CHECK_MIN_COSINE)
            missed += _beyond(case, f"distance of the first {len(case.expected)} components", prefixes[-1], bound)
    figures = {
        "cases": len(rows),
        "min_cosine": min(cosines),
        "max_norm_error": max(norms),
        "max_prefix_distance": max(prefixes),
    }
    return Verdict(not missed, missed[0] if missed else None, figures)


def judge_scores(fixture: Fixture, raw: bytes, kind: ScoreKind, tolerance: ToleranceClass) -> Verdict:
    """Judge the lane's raw scores of ``fixture.rows``: little-endian float32, one per case, in order."""
    rows = _rows(raw, 1)
    unusable = _misshapen(fixture, len(rows), None) or _not_finite(fixture, rows)
    if unusable is not None:
        return unusable
    scores = [row[0] for row in rows]
    found = scores if kind == "probability" else [_sigmoid(score) for score in scores]
    bound = SELF_CHECK_SCORE_ERROR[tolerance]
    errors = [abs(value - case.expected[0]) for value, case in zip(found, fixture.cases, strict=True)]
    missed: list[str] = []
    for case, error in zip(fixture.cases, errors, strict=True):
        missed += _beyond(case, f"error of the probability, in class {tolerance},", error, bound)
    disorder = _disorder(fixture.cases, found)
    missed += disorder
    figures = {"cases": len(found), "max_probability_error": max(errors), "order_violations": len(disorder)}
    return Verdict(not missed, missed[0] if missed else None, figures)


def readout_fault(fixture: Fixture, readout: Readout) -> str | None:
    """What is wrong with the tokens a reranker reads (yes, no) from, or None; a fixture without any asks for none."""
    if fixture.readout is None or fixture.readout == readout:
        return None
    return f"the probability is read from tokens {readout} (yes, no), the fixture says {fixture.readout}"


def _rows(raw: bytes, width: int) -> list[tuple[float, ...]]:
    whole = len(raw) // (4 * width) * (4 * width) if width else 0
    return list(struct.iter_unpack(f"<{width}f", raw[:whole])) if whole else []


def _misshapen(fixture: Fixture, rows: int, dims: int | None) -> Verdict | None:
    wanted = len(fixture.cases)
    if rows != wanted or not wanted:
        return Verdict(False, f"the lane gave {rows} rows for the {wanted} cases of the fixture")
    if dims is None:
        return None
    unfit = next((case for case in fixture.cases if not _fits(case, dims)), None)
    if unfit is None:
        return None
    return Verdict(False, f"case {unfit.case_id}: a vector of {dims} components, the fixture has {len(unfit.expected)}")


def _not_finite(fixture: Fixture, rows: Sequence[Sequence[float]]) -> Verdict | None:
    for case, row in zip(fixture.cases, rows, strict=True):
        if not all(map(math.isfinite, row)):
            return Verdict(False, f"case {case.case_id}: the lane gave figures that are not finite")
    return None


def _fits(case: FixtureCase, dims: int) -> bool:
    return len(case.expected) == dims if case.whole else len(case.expected) <= dims


def _disorder(cases: Sequence[FixtureCase], found: Sequence[float]) -> list[str]:
    misses = []
    for (case, ours), (other, theirs) in combinations(zip(cases, found, strict=True), 2):
        apart = case.expected[0] - other.expected[0]
        same_pool = case.pool is not None and case.pool == other.pool
        if same_pool and abs(apart) >= TIE_MARGIN and not (ours - theirs) * apart > 0:
            misses.append(
                f"cases {case.case_id} and {other.case_id} are ordered {ours:.6f}, {theirs:.6f}; "
                f"the fixture has {case.expected[0]:.6f}, {other.expected[0]:.6f}"
            )
    return misses


def _below(case: FixtureCase, what: str, value: float, floor: float) -> list[str]:
    return [] if value >= floor else [f"case {case.case_id}: {what} {value:.7f}, below {floor}"]


def _beyond(case: FixtureCase, what: str, value: float, ceiling: float) -> list[str]:
    return [] if value <= ceiling else [f"case {case.case_id}: {what} {value:.3e}, above {ceiling:.3e}"]


def _norm(row: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in row))


def _cosine(row: Sequence[float], expected: Sequence[float]) -> float:
    size = _norm(row) * _norm(expected)
    return math.fsum(a * b for a, b in zip(row, expected, strict=True)) / size if size else 0.0


def _relative_distance(row: Sequence[float], expected: Sequence[float]) -> float:
    apart = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(row, expected, strict=False)))
    return apart / _norm(expected)


def _sigmoid(logit: float) -> float:
    # The form with tanh overflows nowhere.
    return 0.5 * (1.0 + math.tanh(0.5 * logit))
