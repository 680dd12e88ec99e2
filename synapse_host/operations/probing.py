"""probe.start, probe.status and probe.report: certification, always asked for, never automatic."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, StrictStr

from synapse_host.certification.ledger import Certification, CertificationLedger, Performance
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.certification.step_count import Count
from synapse_host.errors import InvalidRequest, SynapseError
from synapse_host.identity.machine_profile import MachineProfile
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.resolution import refuse_reserved
from synapse_host.operations.constraints import Milliseconds, Name, Params
from synapse_host.operations.management_jobs import ManagementJob, ManagementJobs
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object

_log = logging.getLogger(__name__)

RunProbe = Callable[[Lane, Callable[[str], None], Count], Awaitable[tuple[Certification, Performance | None]]]


class ProbeStartParams(Params):
    """The models to probe."""

    models: Annotated[list[Name], Field(min_length=1, max_length=64)]
    request_key: Annotated[StrictStr, Field(max_length=256)] | None = None
    deadline_ms: Milliseconds | None = None


class ProbeStatusParams(Params):
    """The job to look at."""

    job_id: Name


class ProbeReportParams(Params):
    """Takes nothing."""


@value_object
class ProbingService:
    """Starts probes and reports what they found. ``run_probe`` measures one lane and stores the outcome."""

    lanes: LaneTable
    shelf: CatalogShelf
    checks: SelfChecks
    ledger: CertificationLedger
    jobs: ManagementJobs
    run_probe: RunProbe
    machine: MachineProfile
    module_generation: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("probe.start", "mutate", ProbeStartParams, self.start),
            Method("probe.status", "query", ProbeStatusParams, self.status),
            Method("probe.report", "query", ProbeReportParams, self.report),
        ]

    async def start(self, params: ProbeStartParams, context: RequestContext) -> Reply:
        """Begin probing the named models, one after another."""
        for name in params.models:
            refuse_reserved(self.shelf.standing.catalog, name, "its lanes check themselves when they are loaded")
        lanes = [self.lanes.get(name) for name in params.models]
        _refuse_uncertifiable(lanes)

        async def run(job: ManagementJob) -> None:
            await self._run(job, lanes)

        content = {"models": params.models}
        job = self.jobs.submit(
            params.request_key,
            content,
            run,
            first_state="running",
            failed_state="failed_permanent",
            transient_state="failed_transient",
        )
        return self._answer(job.to_wire())

    async def _run(self, job: ManagementJob, lanes: list[Lane]) -> None:
        results: list[dict[str, Any]] = []
        job.facts["lanes"] = results
        failures: list[SynapseError] = []
        for lane in lanes:
            try:
                results.append(await self._measured(job, lane))
            except SynapseError as failure:
                # The others say nothing of this one, nor it of them; the job ends with the first that failed.
                failures.append(failure)
        job.facts.pop("step", None)
        if failures:
            raise failures[0]
        job.state = "done"

    async def _measured(self, job: ManagementJob, lane: Lane) -> dict[str, Any]:
        name = lane.model.model_id

        def tell(step: str) -> None:
            job.facts["step"] = {"model_id": name, "step": step}

        def count(done: int, of: int) -> None:
            # What a lane had begun when its probe failed may end later, beside the next one's.
            step = job.facts.get("step")
            if step is not None and step["model_id"] == name:
                job.facts["step"] = {**step, "done": done, "of": of}

        # Unloading the lane meanwhile would make its probe fail for no fault of the lane.
        with lane.lease({"kind": "job", "job_id": job.job_id}):
            certification, performance = await self._probe(lane, tell, count)
        if certification.status == "certified":
            # A quarantined lane answers probe_required: hundreds of rows computed rightly are the cure it asks for.
            lane.strikes.release()
        return _outcome(lane, certification, performance)

    async def _probe(
        self, lane: Lane, tell: Callable[[str], None], count: Count
    ) -> tuple[Certification, Performance | None]:
        name = lane.model.model_id
        try:
            certification, performance = await self.run_probe(lane, tell, count)
        except SynapseError as error:
            _log.warning("probe of model %r failed and changes nothing: %s: %s", name, error.code, error.message)
            error.details = {**(error.details or {}), "model_id": name}
            raise
        speed = "speed not measured"
        if performance is not None:
            rate, p50 = performance.throughput_tok_s, performance.single_item_latency_p50_ms
            speed = f"{rate:.0f} tokens/s, p50 {p50:.2f} ms"
        _log.info("probe of model %r: %s, %s", name, certification.reason or certification.status, speed)
        return certification, performance

    async def status(self, params: ProbeStatusParams, context: RequestContext) -> Reply:
        """How far a probe is, and what it found."""
        return self._answer(self.jobs.get(params.job_id).to_wire())

    async def report(self, params: ProbeReportParams, context: RequestContext) -> Reply:
        """Every lane with its certification and measured speed on this machine."""
        await self.shelf.fill()
        return self._answer(
            {
                "machine_profile_hash": self.machine.hash,
                "machine_profile": self.machine.parts(),
                "lanes": [self._lane_row(lane) for lane in self.lanes],
            }
        )

    def _lane_row(self, lane: Lane) -> dict[str, Any]:
        model = lane.model
        certification = self.ledger.certification(model)
        row = _outcome(lane, certification, self.ledger.performance(model))
        row.update(
            cell_id=f"{model.engine.engine}/{model.family}/{model.quant}",
            task=model.task,
            engine=model.engine.engine,
            backend=model.backend,
            numeric_profile_id=model.numeric_profile_id,
            state=str(lane.state),
            certification_required=model.certifiable,
            certification_stale=self.ledger.is_outdated(model),
            performance_stale=self.ledger.is_outdated(model),
            serving_admission=None,
            serving_admission_reason=None,
        )
        if model.checks_itself:
            row.update(self._of_catalog(lane))
        return row

    def _of_catalog(self, lane: Lane) -> dict[str, Any]:
        """What a lane of the catalog, or with a profile, has in the place of a certification."""
        check = self.checks.row(lane)
        return {
            "certification_status": "not_required",
            "blocking_reason": "self_check_failed" if check.state == "failed" else None,
            "self_check": check.to_wire(),
        }

    def _answer(self, payload: dict[str, Any]) -> Reply:
        return Reply({"module_generation": self.module_generation, **payload})


def _refuse_uncertifiable(lanes: list[Lane]) -> None:
    for lane in lanes:
        model = lane.model
        if model.profile:
            raise InvalidRequest(
                f"model {model.model_id!r} is checked against profile {model.profile!r} when it is loaded and needs no "
                "probe; leave it out",
                details={"model_id": model.model_id, "profile": model.profile},
            )
        if not model.certifiable:
            raise InvalidRequest(
                f"model {model.model_id!r} generates text on engine {model.engine.engine!r}, whose numbers are not "
                "this project's own: it needs no certification and has no probe; leave it out",
                details={"model_id": model.model_id, "task": model.task},
            )


def _outcome(lane: Lane, certification: Certification | None, performance: Performance | None) -> dict[str, Any]:
    certified = certification is not None and certification.status == "certified"
    required = lane.model.certifiable
    blocked = "probe_required" if certification is None else certification.reason
    return {
        "model_id": lane.model.model_id,
        "fingerprint": lane.model.fingerprint,
        "certified": certified,
        "certification_status": ("certified" if certified else "uncertified") if required else "not_required",
        "blocking_reason": blocked if required else None,
        "certification": None if certification is None else asdict(certification),
        "performance": None if performance is None else asdict(performance),
    }
