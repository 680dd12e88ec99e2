"""model.load, model.status and model.unload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from pydantic import ConfigDict

from synapse_host.downloads.download_jobs import JOB_KIND, DownloadJobs
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.registrar import ModelRegistrar
from synapse_host.lanes.resolution import lane_of, refuse_reserved
from synapse_host.models.load_request import LoadRequest
from synapse_host.operations.constraints import Name, Params
from synapse_host.operations.load_fetching import LoadFetching
from synapse_host.operations.load_manifest import LoadPlan, ModelLoadParams, PreloadParams, load_plan
from synapse_host.operations.management_jobs import ManagementJob, ManagementJobs
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object

#: The status of a job, None for an id of another kind.
FindJob = Callable[[str], Awaitable[dict[str, Any] | None]]


class ModelStatusParams(Params):
    """Exactly one of the two."""

    job_id: Name | None = None
    model_id: Name | None = None


class ModelUnloadParams(Params):
    """The model to unload; other fields are tolerated (wire contract section 5)."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    model_id: Name


@value_object
class LoadingService:
    """Registers, loads and unloads models."""

    lanes: LaneTable
    shelf: CatalogShelf
    registrar: ModelRegistrar
    jobs: ManagementJobs
    downloads: DownloadJobs
    fetching: LoadFetching
    module_generation: int
    #: Where the status of jobs of other kinds is found; each answers None for an id it does not know.
    other_jobs: Sequence[FindJob] = ()

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("model.load", "mutate", ModelLoadParams, self.load),
            Method("model.status", "query", ModelStatusParams, self.status),
            Method("model.unload", "mutate", ModelUnloadParams, self.unload),
        ]

    def own_methods(self) -> list[Method]:
        """The same for the host itself, whose loads may name a profile."""
        load, *others = self.methods()
        return [replace(load, params=PreloadParams), *others]

    async def load(self, params: ModelLoadParams, context: RequestContext) -> Reply:
        """Start loading; the reply names the job to poll."""
        if params.model_id is not None:
            refuse_reserved(
                self.shelf.standing.catalog,
                params.model_id,
                "download it with models.download, or use another model_id",
            )
        plan = load_plan(params)
        content = params.model_dump(mode="json", exclude={"request_key", "deadline_ms"})

        async def run(job: ManagementJob) -> None:
            await self._run(job, plan)

        job = self.jobs.submit(params.request_key, content, run, first_state="resolving", failed_state="failed")
        return self._answer(job.to_wire())

    async def _run(self, job: ManagementJob, plan: LoadPlan) -> None:
        def enter(state: str, **facts: str) -> None:
            job.state = state
            job.facts.pop("bytes_done", None)
            job.facts.update(facts)

        async def bring(request: LoadRequest) -> LoadRequest:
            enter("downloading")
            return await self.fetching.bring(plan, partial(job.facts.__setitem__, "bytes_done"))

        try:
            await self.registrar.register(plan.request, enter, bring if plan.fetched else None)
        except BaseException:
            if plan.fetched and self.lanes.find(plan.request.model_id or "") is None:
                with anyio.CancelScope(shield=True):
                    await self.fetching.give_up(plan)
            raise
        enter("ready")

    async def status(self, params: ModelStatusParams, context: RequestContext) -> Reply:
        """The state of a load job, a download job or a model."""
        if (params.job_id is None) == (params.model_id is None):
            raise InvalidRequest("model.status takes exactly one of job_id and model_id", channel=True)
        if params.job_id is not None:
            return self._answer(await self._job_status(params.job_id))
        assert params.model_id is not None
        return self._answer(_lane_status(await lane_of(self.lanes, self.shelf, params.model_id)))

    async def _job_status(self, job_id: str) -> dict[str, Any]:
        download = await self.downloads.find(job_id)
        if download is not None:
            return {"kind": JOB_KIND, **download}
        for find in self.other_jobs:
            status = await find(job_id)
            if status is not None:
                return status
        return self.jobs.get(job_id).to_wire()

    async def unload(self, params: ModelUnloadParams, context: RequestContext) -> Reply:
        """Stop the model's worker; the model stays registered and loads again when asked."""
        self._refuse_entry(params.model_id)
        lane = await lane_of(self.lanes, self.shelf, params.model_id)
        await lane.unload()
        return self._answer(_lane_status(lane))

    def _refuse_entry(self, model_id: str) -> None:
        entry = self.shelf.standing.catalog.entry(model_id)
        if entry is not None:
            raise InvalidRequest(
                f"{entry.id!r} is a model of the catalog; unload a lane of it: {', '.join(entry.lane_ids) or 'none'}",
                details={"catalog_id": entry.id, "lane_ids": entry.lane_ids},
            )

    def _answer(self, payload: dict[str, Any]) -> Reply:
        return Reply({"module_generation": self.module_generation, **payload})


def _lane_status(lane: Lane) -> dict[str, Any]:
    model = lane.model
    return {
        "model_id": model.model_id,
        "fingerprint": model.fingerprint,
        "state": str(lane.state),
        "engine": model.engine.engine,
        "task": model.task,
    }
