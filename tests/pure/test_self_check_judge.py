"""The shipped fixtures as test vectors of the judge: their figures pass, so does 0.9 of a tolerance, 1.1 does not."""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import pytest

from synapse_host.certification import self_check_fixtures
from synapse_host.certification.self_check_fixtures import (
    PUBLISHED_READOUT,
    Fixture,
    FixtureInvalid,
    packed,
    parse_fixtures,
    sealed,
)
from synapse_host.certification.self_check_judge import (
    ToleranceClass,
    Verdict,
    judge_scores,
    judge_vectors,
    readout_fault,
)
from synapse_host.families.qwen3 import YES_AND_NO
from synapse_host.tolerances import MAX_NORM_ERROR, SELF_CHECK_MIN_COSINE, SELF_CHECK_SCORE_ERROR, distance_of

SHIPPED = self_check_fixtures.shipped_fixtures()
DIMS = {"gte-modernbert-base": 768, "qwen3-embedding-0.6b": 1024}
RERANKERS = {"gte-reranker-modernbert-base": 0, "qwen3-reranker-0.6b": 0}


def document() -> dict[str, Any]:
    text = resources.files("synapse_host.certification").joinpath("self_check_fixtures.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def bytes_of(rows: Sequence[Sequence[float]]) -> bytes:
    flat = [value for row in rows for value in row]
    return struct.pack(f"<{len(flat)}f", *flat)


def whole_rows(fixture: Fixture) -> list[list[float]]:
    """Unit vectors of every case; where only the first components are kept, one further component makes the length."""
    rows = []
    for case in fixture.cases:
        rest = math.sqrt(max(0.0, 1.0 - math.fsum(x * x for x in case.expected)))
        tail = [] if case.whole else [rest] + [0.0] * (DIMS[fixture.model_id] - len(case.expected) - 1)
        rows.append([*case.expected, *tail])
    return rows


def judged(fixture: Fixture, change: Callable[[list[list[float]]], None] = lambda rows: None) -> Verdict:
    rows = whole_rows(fixture)
    change(rows)
    return judge_vectors(fixture, bytes_of(rows), DIMS[fixture.model_id])


def turned(row: list[float], cosine: float) -> list[float]:
    """A unit vector at this cosine to the unit vector ``row``."""
    aside = [0.0] * len(row)
    aside[0], aside[1] = -row[1], row[0]
    size = math.hypot(aside[0], aside[1])
    sine = math.sqrt(1 - cosine * cosine)
    return [cosine * a + sine * b / size for a, b in zip(row, aside, strict=True)]


def test_the_four_catalog_models_are_carried_with_their_pins() -> None:
    assert set(SHIPPED) == set(DIMS) | set(RERANKERS)
    revisions = {name: fixture.hf_revision[:8] for name, fixture in SHIPPED.items()}
    assert revisions == {
        "gte-modernbert-base": "e7f32e3c",
        "qwen3-embedding-0.6b": "97b0c614",
        "gte-reranker-modernbert-base": "f7481e60",
        "qwen3-reranker-0.6b": "e61197ed",
    }
    assert [len(case.ids) for case in SHIPPED["gte-modernbert-base"].cases] == [5, 128]
    assert {len(fixture.cases) for name, fixture in SHIPPED.items() if name in RERANKERS} == {6}
    assert SHIPPED["qwen3-reranker-0.6b"].readout == (9693, 2152)


@pytest.mark.parametrize("name", DIMS)
def test_the_figures_themselves_pass(name: str) -> None:
    verdict = judged(SHIPPED[name])
    assert verdict.passed, verdict.reason
    assert verdict.figures["min_cosine"] > 0.9999999
    assert verdict.figures["max_prefix_distance"] < 1e-7


@pytest.mark.parametrize("name", DIMS)
@pytest.mark.parametrize(("share", "passes"), [(0.9, True), (1.1, False)])
def test_each_tolerance_of_vectors_accepts_at_nine_tenths_and_rejects_at_eleven(
    name: str, share: float, passes: bool
) -> None:
    fixture = SHIPPED[name]

    def turn(rows: list[list[float]]) -> None:
        rows[0] = turned(rows[0], 1 - share * (1 - SELF_CHECK_MIN_COSINE))

    def stretch(rows: list[list[float]]) -> None:
        rows[0] = [value * (1 + share * MAX_NORM_ERROR) for value in rows[0]]

    def move_prefix(rows: list[list[float]]) -> None:
        expected = fixture.cases[1].expected
        reach = share * distance_of(SELF_CHECK_MIN_COSINE) * math.hypot(*expected) / math.sqrt(len(expected))
        moved = [value + reach for value in expected]
        rest = math.sqrt(1 - math.fsum(x * x for x in moved))
        rows[1] = [*moved, rest, *[0.0] * (len(rows[1]) - len(moved) - 1)]

    for change, said in ((turn, "cosine"), (stretch, "length of the vector"), (move_prefix, "first 64 components")):
        verdict = judged(fixture, change)
        assert verdict.passed is passes, (said, verdict)
        assert passes or said in str(verdict.reason)


@pytest.mark.parametrize("name", DIMS)
def test_rows_in_another_order_do_not_pass(name: str) -> None:
    assert not judged(SHIPPED[name], lambda rows: rows.reverse()).passed


def scores_of(fixture: Fixture) -> list[float]:
    return [case.expected[0] for case in fixture.cases]


@pytest.mark.parametrize("name", RERANKERS)
def test_the_probabilities_themselves_pass_as_such_and_as_logits(name: str) -> None:
    fixture = SHIPPED[name]
    found = scores_of(fixture)
    logits = [math.log(p / (1 - p)) for p in found]
    classes: tuple[ToleranceClass, ...] = ("fp32", "fp16")
    for tolerance in classes:
        assert judge_scores(fixture, bytes_of([found]), "probability", tolerance).passed
        assert judge_scores(fixture, bytes_of([logits]), "logit", tolerance).passed
    assert not judge_scores(fixture, bytes_of([found]), "logit", "fp16").passed


@pytest.mark.parametrize("name", RERANKERS)
@pytest.mark.parametrize("tolerance", SELF_CHECK_SCORE_ERROR)
@pytest.mark.parametrize(("share", "passes"), [(0.9, True), (1.1, False)])
def test_the_tolerance_of_scores_accepts_at_nine_tenths_and_rejects_at_eleven(
    name: str, tolerance: ToleranceClass, share: float, passes: bool
) -> None:
    fixture = SHIPPED[name]
    found = scores_of(fixture)
    # A case outside the pool, moved away from the end of the scale it is nearest to.
    found[1] += share * SELF_CHECK_SCORE_ERROR[tolerance]
    verdict = judge_scores(fixture, bytes_of([found]), "probability", tolerance)
    assert verdict.passed is passes
    assert passes or "case short-1" in str(verdict.reason)


def test_an_exchange_within_a_pool_is_a_violation_unless_the_reference_ties() -> None:
    near = _pool([0.500, 0.509, 0.530])
    swapped_tie = judge_scores(near, bytes_of([[0.5095, 0.5090, 0.53]]), "probability", "fp16")
    assert swapped_tie.passed
    apart = _pool([0.500, 0.511, 0.530])
    swapped = judge_scores(apart, bytes_of([[0.509, 0.508, 0.53]]), "probability", "fp16")
    assert not swapped.passed
    assert "ordered" in str(swapped.reason)
    equal = judge_scores(apart, bytes_of([[0.509, 0.509, 0.53]]), "probability", "fp16")
    assert not equal.passed


def _pool(expected: Sequence[float]) -> Fixture:
    cases = [{"id": f"c{i}", "ids": [i], "expected": packed([p]), "pool": "p"} for i, p in enumerate(expected)]
    entry = sealed({"hf_revision": "0" * 40, "task": "rerank", "cases": cases})
    return parse_fixtures({"revision": 3, "models": {"tiny": entry}})["tiny"]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_too_few_or_too_many_are_named(rows: int) -> None:
    fixture = SHIPPED["gte-modernbert-base"]
    verdict = judge_vectors(fixture, bytes_of([[0.1] * 768] * rows), 768)
    assert not verdict.passed
    assert f"{rows} rows for the 2 cases" in str(verdict.reason)


def test_another_width_and_figures_that_are_none_are_named() -> None:
    fixture = SHIPPED["gte-modernbert-base"]
    narrow = judge_vectors(fixture, bytes_of([[0.1] * 384] * 2), 384)
    assert "384 components, the fixture has 768" in str(narrow.reason)
    rows = whole_rows(fixture)
    rows[1][700] = math.nan
    assert "boundary-128: the lane gave figures that are not finite" in str(
        judge_vectors(fixture, bytes_of(rows), 768).reason
    )
    zero = judge_vectors(fixture, bytes_of([[0.0] * 768] * 2), 768)
    assert not zero.passed
    scores = judge_scores(SHIPPED["qwen3-reranker-0.6b"], bytes_of([[math.inf] * 6]), "logit", "fp16")
    assert "not finite" in str(scores.reason)


def test_another_readout_is_named() -> None:
    assert PUBLISHED_READOUT == YES_AND_NO
    qwen = SHIPPED["qwen3-reranker-0.6b"]
    assert readout_fault(qwen, (9693, 2152)) is None
    assert "(2152, 9693)" in str(readout_fault(qwen, (2152, 9693)))
    assert readout_fault(SHIPPED["gte-reranker-modernbert-base"], (1, 2)) is None


def test_an_entry_that_is_not_what_its_seal_says_is_refused() -> None:
    for change in (
        lambda e: e["cases"][0]["ids"].append(5),
        lambda e: e.pop("seal"),
        lambda e: e.update(task="embed "),
    ):
        spoiled = copy.deepcopy(document())
        change(spoiled["models"]["gte-modernbert-base"])
        with pytest.raises(FixtureInvalid, match="gte-modernbert-base"):
            parse_fixtures(spoiled)


@pytest.mark.parametrize("member", ["cases", "task", "hf_revision"])
def test_an_entry_without_a_member_is_refused(member: str) -> None:
    entry = dict(document()["models"]["gte-modernbert-base"])
    del entry[member]
    with pytest.raises(FixtureInvalid, match=member):
        parse_fixtures({"revision": 1, "models": {"m": sealed(entry)}})
