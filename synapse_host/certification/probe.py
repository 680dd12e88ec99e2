"""One probe of one lane: run it beside the reference, judge the agreement, measure its speed.

The lane runs the probe's rows as it would serve them, in mixed batches through its own queue. The reference runs them
in a worker of its own, in float32. Then the backend checks itself, operation by operation and on tiny models that
magnify mistakes a trained model would hide; a backend that has no such check runs the tiny model of its family alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synapse_host.certification.engine_check_run import check_engine
from synapse_host.certification.ledger import Certification, Performance
from synapse_host.certification.placement import placement_of
from synapse_host.certification.probe_setting import REFERENCE_BACKEND, ProbeSetting, Subject
from synapse_host.certification.score_probe import ScoreSubject
from synapse_host.certification.text_probe import TextSubject
from synapse_host.certification.vector_probe import VectorSubject
from synapse_host.errors import EngineCrashed
from synapse_host.hookspecs import Task
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.neural_engine_models import on_neural_engine
from synapse_host.model_files.compiled_package import MODEL_FORMAT as MLMODELC
from synapse_host.models.registered_model import RegisteredModel

__all__ = ["REFERENCE_BACKEND", "ProbeSetting", "probe_lane"]

#: What an engine can do wrong that is a measurement: output that is no vector. An engine that crashed measured nothing.
_WRONG_OUTPUT = frozenset({"non_finite_output", "zero_output"})


#: What a probe measures, by the lane's task.
SUBJECTS: Mapping[Task, Callable[[Lane, ProbeSetting], Subject]] = {
    "embed": VectorSubject,
    "rerank": ScoreSubject,
    "generate": TextSubject,
}


async def probe_lane(
    lane: Lane, profile_hash: str, setting: ProbeSetting, tell: Callable[[str], None]
) -> tuple[Certification, Performance | None]:
    """Measure ``lane`` and judge it; ``tell`` hears the name of each step.

    A lane whose engine computed something that is no vector is uncertified with that as its reason; so is one whose
    checkpoint makes none of the reference either.

    Raises:
        SynapseError: the reference or the lane cannot run to the end; that says nothing of its numbers.
        StoreFailure: the magnifying model cannot be written.

    """
    tell("loading")
    await lane.load()
    model = lane.model
    subject = SUBJECTS[model.task](lane, setting)
    tell("reference")
    try:
        await subject.run_reference()
    except EngineCrashed as crash:
        _require_wrong_output(crash)
        # What a worker advises about a lane helps nobody here: the reference has no other dtype or backend.
        found = crash.message.partition("; ")[0]
        said = (
            f"the reference's own numbers of this checkpoint are none ({found}); its weights are suspect: fetch the "
            "files again from where they were published"
        )
        return _outcome(model, profile_hash, [said], {"error": crash.to_wire()}, setting), None
    # The lane's worker may have been killed meanwhile, by the system for its memory say: no fault of its numbers.
    await lane.load()
    try:
        tell("lane")
        await subject.run_lane()
        tell("engine")
        # Text is held to the reference token by token: no operation can be wrong in it and not show.
        packages = model.format == MLMODELC
        engine = None if model.task == "generate" or packages else await check_engine(model, setting)
        # What packages compute is in them: no other model can be run in their place.
        if engine is None and not packages:
            tell("magnifying model")
            await subject.run_magnified()
        speed = None
        missed, evidence = subject.judged()
        if on_neural_engine(model):
            tell("placement")
            placement = await placement_of(lane)
            missed = [*missed, *placement.missed(setting.placement_floor)]
            evidence = {**evidence, "placement": {"floor": setting.placement_floor, **placement.to_evidence()}}
        if engine is not None:
            missed, evidence = [*missed, *engine.missed], {**evidence, "engine": engine.evidence}
        if not missed:
            tell("speed")
            speed = await _speed(lane, subject, profile_hash, setting)
    except EngineCrashed as crash:
        _require_wrong_output(crash)
        missed, evidence, speed = [crash.message], {"error": crash.to_wire()}, None
    return _outcome(model, profile_hash, missed, evidence, setting), speed


def _require_wrong_output(crash: EngineCrashed) -> None:
    """Raise ``crash`` again unless something was computed that is no vector."""
    if (crash.details or {}).get("reason") not in _WRONG_OUTPUT:
        raise crash


def _outcome(
    model: RegisteredModel, profile_hash: str, missed: list[str], evidence: dict[str, Any], setting: ProbeSetting
) -> Certification:
    return Certification(
        fingerprint=model.fingerprint,
        machine_profile_hash=profile_hash,
        status="uncertified" if missed else "certified",
        reason="; ".join(missed) or None,
        evidence=evidence,
        os_build=setting.os_build,
        module_generation=setting.module_generation,
        measured_at_ms=setting.now_ms(),
    )


async def _speed(lane: Lane, subject: Subject, profile_hash: str, setting: ProbeSetting) -> Performance:
    throughput, single = await subject.speed()
    return Performance(
        fingerprint=lane.model.fingerprint,
        machine_profile_hash=profile_hash,
        throughput_tok_s=throughput,
        cold_load_ms=float(lane.cold_load_ms or 0),
        single_item_latency_p50_ms=single,
        measured_at_ms=setting.now_ms(),
    )
