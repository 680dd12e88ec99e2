"""Every move of the job machine, and that nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.jobs.job_state import OPEN, IllegalJobMove, JobEvent, JobState, failure_event, next_state

E, S = JobEvent, JobState
#: Said a second time, as a reader of the contract would: state -> event -> state.
LEGAL = {
    S.QUEUED: {
        E.CLAIMED: S.RUNNING,
        E.CREDENTIAL_REFUSED: S.PAUSED,
        E.FAILED_TRANSIENTLY: S.FAILED_TRANSIENT,
        E.FAILED_PERMANENTLY: S.FAILED_PERMANENT,
        E.HOST_RESTARTED: S.FAILED_TRANSIENT,
        E.CANCELLED: S.CANCELLED,
    },
    S.RUNNING: {
        E.FINISHED: S.DONE,
        E.CREDENTIAL_REFUSED: S.PAUSED,
        E.FAILED_TRANSIENTLY: S.FAILED_TRANSIENT,
        E.FAILED_PERMANENTLY: S.FAILED_PERMANENT,
        E.HOST_RESTARTED: S.FAILED_TRANSIENT,
        E.CANCELLED: S.CANCELLED,
    },
    S.PAUSED: {
        E.RESUMED: S.QUEUED,
        E.LOGIN_EXPIRED: S.FAILED_PERMANENT,
        E.FAILED_TRANSIENTLY: S.FAILED_TRANSIENT,
        E.FAILED_PERMANENTLY: S.FAILED_PERMANENT,
        E.HOST_RESTARTED: S.FAILED_TRANSIENT,
        E.CANCELLED: S.CANCELLED,
    },
}


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("event", JobEvent)
def test_a_move_is_legal_exactly_where_it_is_listed(state: JobState, event: JobEvent) -> None:
    expected = LEGAL.get(state, {}).get(event)
    if expected is None:
        with pytest.raises(IllegalJobMove, match=f"{event}.*{state}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


@given(st.lists(st.sampled_from(JobEvent), max_size=30))
def test_whatever_happens_a_job_that_ended_stays_as_it_is(events: list[JobEvent]) -> None:
    state = JobState.QUEUED
    for event in events:
        try:
            after = next_state(state, event)
        except IllegalJobMove:
            continue
        assert not state.terminal, f"{state} was left by {event}"
        state = after


def test_a_job_is_open_until_it_is_terminal() -> None:
    assert {state for state in JobState if not state.terminal} == set(OPEN)


def test_an_error_fails_a_job_as_its_class_says() -> None:
    assert failure_event("transient") is JobEvent.FAILED_TRANSIENTLY
    assert failure_event("permanent") is JobEvent.FAILED_PERMANENTLY
