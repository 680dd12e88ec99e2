"""How a job finds its lane again, and what it is told when that is another one or must not serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from synapse_host.errors import EngineCrashed, NotCertified, SubstitutionRejected, SynapseError, UnknownModel
from synapse_host.operations.job_lanes import JobLanes, ServedLane

FINGERPRINT = "f" * 64


class Refusing:
    """Any collaborator: every method returns, or raises what it was told to under the method's name."""

    def __init__(self, **refusals: SynapseError) -> None:
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        def asked(*_: Any) -> None:
            if name in self._refusals:
                raise self._refusals[name]

        return asked


def lanes_of(lane: Any, **refusals: SynapseError) -> JobLanes:
    def get(model_id: str) -> Any:
        if lane is None:
            raise UnknownModel(f"no model {model_id!r}", details={"model_id": model_id})
        return lane

    other: Any = Refusing(**refusals)
    table: Any = SimpleNamespace(get=get)
    return JobLanes(table, other, other, other, other)


def lane(fingerprint: str = FINGERPRINT, certifiable: bool = True, quarantine: SynapseError | None = None) -> Any:
    refusing = Refusing(**({"refuse_quarantined": quarantine} if quarantine else {}))
    model = SimpleNamespace(fingerprint=fingerprint, certifiable=certifiable, model_id="m")
    return SimpleNamespace(model=model, refuse_quarantined=refusing.refuse_quarantined)


JOB: Any = SimpleNamespace(job_id="embed-1-1", model_id="m", fingerprint=FINGERPRINT)


def test_the_lane_of_the_jobs_model_carries_it_out() -> None:
    found = lanes_of(there := lane()).of(JOB)
    assert isinstance(found, ServedLane)
    assert found.lane is there


def test_another_model_under_the_name_is_no_substitute() -> None:
    with pytest.raises(SubstitutionRejected, match=r"replaced while job 'embed-1-1'") as refusal:
        lanes_of(lane("e" * 64)).of(JOB)
    assert refusal.value.details == {"lane_id": "m", "required_fingerprint": FINGERPRINT}


def test_a_model_that_is_gone_is_named() -> None:
    with pytest.raises(UnknownModel):
        lanes_of(None).of(JOB)


@pytest.mark.parametrize("fence", ["refuse", "refuse_failed", "require_certified"])
def test_every_fence_is_met(fence: str) -> None:
    with pytest.raises(NotCertified):
        lanes_of(lane(), **{fence: NotCertified("no")}).of(JOB)


def test_a_quarantine_is_met() -> None:
    with pytest.raises(EngineCrashed):
        lanes_of(lane(quarantine=EngineCrashed("cooling down"))).of(JOB)


def test_a_lane_that_checks_itself_needs_no_certification() -> None:
    assert lanes_of(lane(certifiable=False), require_certified=NotCertified("no")).of(JOB) is not None
