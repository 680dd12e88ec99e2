"""Running a backend's self-check and the reference's, each in a worker of its own that holds a tiny model."""

from __future__ import annotations

from synapse_host.certification.engine_check import EngineFindings, judge_engine
from synapse_host.certification.probe_setting import ProbeSetting, magnifier_for, on_reference
from synapse_host.certification.worker_runs import checks_of
from synapse_host.models.registered_model import RegisteredModel


async def check_engine(model: RegisteredModel, setting: ProbeSetting) -> EngineFindings | None:
    """What the self-check of the backend of ``model`` finds, in its dtype; None for a backend that has none.

    The reference's numbers are the same for every lane and are computed once in the life of a host.

    Raises:
        SynapseError: a worker could not be started, refused, or died; that says nothing of its numbers.
        StoreFailure: the tiny model cannot be written.

    """
    with magnifier_for(model) as (tiny, _):
        lane = await checks_of(setting.start_worker, tiny, threads=setting.threads)
        if lane is None:
            return None
        if not setting.reference_checks:
            setting.count(1, 2)
            found = await checks_of(setting.start_worker, on_reference(tiny), threads=0)
            assert found is not None, "the reference checks itself"
            setting.reference_checks.extend(found)
    return judge_engine(lane, setting.reference_checks, dtype=model.dtype, family=model.family, task=model.task)
