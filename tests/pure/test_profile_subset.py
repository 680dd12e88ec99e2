"""The cases a preload with a profile is checked by, and where their figures come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synapse_host.certification.profile_subset import profile_subset, unpublished, with_figures
from synapse_host.certification.self_check_fixtures import Fixture, FixtureInvalid, shipped_fixtures

SHIPPED = shipped_fixtures()
BOUNDARY = ["boundary-127", "boundary-128", "boundary-129"]
POOL = ["pool10-000", "pool10-001", "pool10-002"]


def names(fixture: Fixture) -> list[str]:
    return [case.case_id for case in fixture.cases]


@pytest.mark.parametrize("model", sorted(SHIPPED))
def test_every_shipped_model_has_the_cases_of_the_contract(model: str) -> None:
    subset = profile_subset(SHIPPED[model], 8192)
    assert names(subset) == ["short-0", *BOUNDARY, *(POOL if subset.task == "rerank" else [])]
    assert [len(case.ids) for case in subset.cases[1:4]] == [127, 128, 129]
    assert len({case.ids for case in subset.cases[1:4]}) == 3


@pytest.mark.parametrize("model", sorted(SHIPPED))
def test_a_row_without_figures_begins_and_ends_as_the_published_ones_do(model: str) -> None:
    fixture = SHIPPED[model]
    for row in fixture.profile_rows:
        assert row.ids[-1] == fixture.cases[0].ids[-1]
        assert model.startswith("qwen3-emb") or row.ids[0] == fixture.cases[0].ids[0]
        if fixture.task == "rerank":
            # The query is whole: what all pairs begin with.
            assert row.ids[:15] == fixture.cases[0].ids[:15]


def test_only_what_is_not_published_is_computed() -> None:
    embed = profile_subset(SHIPPED["gte-modernbert-base"], 8192)
    assert [case.case_id for case in unpublished(embed)] == ["boundary-127", "boundary-129"]
    rerank = profile_subset(SHIPPED["qwen3-reranker-0.6b"], 8192)
    assert [case.case_id for case in unpublished(rerank)] == BOUNDARY
    complete = with_figures(rerank, [[0.1], [0.2], [0.3]])
    assert unpublished(complete) == []
    assert [case.expected for case in complete.cases[1:4]] == [(0.1,), (0.2,), (0.3,)]
    assert complete.cases[4:] == rerank.cases[4:]


def test_a_model_is_not_asked_for_what_it_never_computes() -> None:
    assert names(profile_subset(SHIPPED["gte-modernbert-base"], 128)) == ["short-0", *BOUNDARY[:2]]


def test_a_reference_that_lacks_a_case_is_named() -> None:
    lacking = replace(SHIPPED["gte-reranker-modernbert-base"], profile_rows=())
    with pytest.raises(FixtureInvalid, match="lacks the cases boundary-127, boundary-128, boundary-129"):
        profile_subset(lacking, 8192)
