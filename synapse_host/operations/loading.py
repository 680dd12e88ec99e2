"""model.load, model.status and model.unload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr

from synapse_host.downloads.download_jobs import JOB_KIND, DownloadJobs
from synapse_host.errors import InvalidRequest
from synapse_host.hookspecs import DType, Pooling, Task
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.load_request import LoadRequest
from synapse_host.lanes.registrar import ModelRegistrar
from synapse_host.lanes.resolution import lane_of, refuse_reserved
from synapse_host.operations.constraints import Milliseconds, Name, Params
from synapse_host.operations.management_jobs import ManagementJob, ManagementJobs
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.tokenization.text_prompts import TextPrompts

PathText = Annotated[StrictStr, Field(min_length=1, max_length=4096)]


class DetailedFile(Params):
    """A file with the digest it must have."""

    url: PathText
    sha256: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")]


FileSpec = PathText | DetailedFile


class ModelFiles(Params):
    """The files of a model, named relative to ``path``."""

    model: FileSpec = "model.safetensors"
    tokenizer: FileSpec = "tokenizer.json"
    config: FileSpec = "config.json"
    extra: list[FileSpec] = Field(default_factory=list)


class Prompts(Params):
    """What the model wants before a text."""

    query: Annotated[StrictStr, Field(max_length=4096)] = ""
    document: Annotated[StrictStr, Field(max_length=4096)] = ""


class ModelLoadParams(Params):
    """What to load and how to compute it."""

    source: Literal["file", "hf", "url"]
    path: PathText | None = None
    files: ModelFiles = Field(default_factory=ModelFiles)
    expected_digest: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")] | None = None
    engine: Name
    model_id: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None
    task: Task = "embed"
    pooling: Pooling = "mean"
    normalize: StrictBool = True
    max_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] | None = None
    dtype: DType | None = None
    quant: Annotated[StrictStr, Field(max_length=32)] = "none"
    prompts: Prompts = Field(default_factory=Prompts)
    request_key: Annotated[StrictStr, Field(max_length=256)] | None = None
    deadline_ms: Milliseconds | None = None


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


@dataclass(frozen=True, slots=True)
class LoadingService:
    """Registers, loads and unloads models."""

    lanes: LaneTable
    shelf: CatalogShelf
    registrar: ModelRegistrar
    jobs: ManagementJobs
    downloads: DownloadJobs
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

    async def load(self, params: ModelLoadParams, context: RequestContext) -> Reply:
        """Start loading; the reply names the job to poll."""
        if params.model_id is not None:
            refuse_reserved(
                self.shelf.standing.catalog,
                params.model_id,
                "download it with models.download, or use another model_id",
            )
        request = _load_request(params)
        content = params.model_dump(mode="json", exclude={"request_key", "deadline_ms"})

        async def run(job: ManagementJob) -> None:
            await self._run(job, request)

        job = self.jobs.submit(params.request_key, content, run, first_state="resolving", failed_state="failed")
        return self._answer(job.to_wire())

    async def _run(self, job: ManagementJob, request: LoadRequest) -> None:
        def enter(state: str, **facts: str) -> None:
            job.state = state
            job.facts.update(facts)

        await self.registrar.register(request, enter)
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


def _load_request(params: ModelLoadParams) -> LoadRequest:
    if params.source != "file":
        raise InvalidRequest(
            f"source {params.source!r} is not served by this version; download the files and use source 'file'",
            details={"source": params.source},
        )
    if params.path is None:
        raise InvalidRequest(
            "source 'file' needs path, the directory of the model's files", details={"parameter": "path"}
        )
    if params.files.extra:
        raise InvalidRequest(
            f"files.extra holds {len(params.files.extra)} file(s) and engine {params.engine!r} takes none",
            details={"parameter": "files.extra"},
        )
    model, model_digest = _name_and_digest(params.files.model)
    tokenizer, tokenizer_digest = _name_and_digest(params.files.tokenizer)
    config, config_digest = _name_and_digest(params.files.config)
    return LoadRequest(
        directory=params.path,
        model=(model, model_digest or params.expected_digest),
        tokenizer=(tokenizer, tokenizer_digest),
        config=(config, config_digest),
        engine=params.engine,
        model_id=params.model_id,
        task=params.task,
        pooling=params.pooling,
        normalize=params.normalize,
        max_tokens=params.max_tokens,
        dtype=params.dtype,
        quant=params.quant,
        prompts=TextPrompts(params.prompts.query, params.prompts.document),
    )


def _name_and_digest(spec: FileSpec) -> tuple[str, str | None]:
    name, digest = (spec.url, spec.sha256) if isinstance(spec, DetailedFile) else (spec, None)
    if "://" in name:
        raise InvalidRequest(
            f"file {name!r} is an address and source 'file' takes names below path; download it there and name it",
            details={"file": name},
        )
    return name, digest
