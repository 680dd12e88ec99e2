"""The fixed cases a preload with a profile is checked by: which they are, and where their figures come from. Pure.

There are four, and three more for a reranker (wire contract section 10): a short text, both sides of the boundary of
128 tokens, and a small pool. Those whose figures are published are held against these. The figures of the others are
computed by the reference backend from the files of the very model, so that its kernels are seen on both sides of the
boundary where nothing was published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from synapse_host.certification.self_check_fixtures import Fixture, FixtureCase, FixtureInvalid
from synapse_host.models.profiles import read_profile
from synapse_host.models.registered_model import RegisteredModel

#: Case ids, in the order they are computed in.
EMBED_CASES = ("short-0", "boundary-127", "boundary-128", "boundary-129")
RERANK_CASES = (*EMBED_CASES, "pool10-000", "pool10-001", "pool10-002")


def profile_subset(fixture: Fixture, max_tokens: int) -> Fixture:
    """``fixture`` with the cases of a profile alone, without those a model of ``max_tokens`` never computes.

    Cases without published figures have none yet: see ``with_figures``.

    Raises:
        FixtureInvalid: a case is missing.

    """
    by_id = {case.case_id: case for case in (*fixture.cases, *fixture.profile_rows)}
    wanted = RERANK_CASES if fixture.task == "rerank" else EMBED_CASES
    if missing := [case_id for case_id in wanted if case_id not in by_id]:
        raise FixtureInvalid(f"the reference of {fixture.model_id} lacks the cases {', '.join(missing)}")
    cases = [by_id[case_id] for case_id in wanted]
    return replace(fixture, cases=tuple(case for case in cases if len(case.ids) <= max_tokens), profile_rows=())


def subset_for(model: RegisteredModel, fixtures: Mapping[str, Fixture]) -> Fixture:
    """The cases ``model`` is checked by under its profile.

    Raises:
        FixtureInvalid: there is no reference for the profile, it is of another task, or lacks a case.

    """
    fixture = fixtures.get(read_profile(model.profile or "").model)
    if fixture is None:
        raise FixtureInvalid(f"there is no reference for profile {model.profile!r}")
    if fixture.task != model.task:
        raise FixtureInvalid(f"profile {model.profile!r} is for task {fixture.task!r}, the model for {model.task!r}")
    return profile_subset(fixture, model.max_tokens)


def unpublished(fixture: Fixture) -> list[FixtureCase]:
    """The cases of ``fixture`` whose figures are still to be computed."""
    return [case for case in fixture.cases if not case.expected]


def with_figures(fixture: Fixture, figures: Sequence[Sequence[float]]) -> Fixture:
    """``fixture`` with what was computed of its ``unpublished`` cases, in their order: unit vectors, probabilities."""
    computed = dict(zip((case.case_id for case in unpublished(fixture)), figures, strict=True))
    cases = [
        replace(case, expected=tuple(computed[case.case_id])) if case.case_id in computed else case
        for case in fixture.cases
    ]
    return replace(fixture, cases=tuple(cases))
