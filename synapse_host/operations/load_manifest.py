"""What ``model.load`` asks for, turned into what is fetched and what is read from this machine. Pure.

Whatever can be refused is refused here, before any of it is asked for: revisions that move, addresses without a digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import AliasChoices, Discriminator, Field, StrictBool, StrictInt, StrictStr, Tag

from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.sources import address_fault, holds_control, is_web_address, names_branch
from synapse_host.errors import InvalidRequest
from synapse_host.hookspecs import DType, Pooling, Task
from synapse_host.models.load_request import LoadRequest, NamedFile
from synapse_host.operations.constraints import Milliseconds, Name, Params
from synapse_host.tokenization.text_prompts import TextPrompts
from synapse_host.values import value_object

PathText = Annotated[StrictStr, Field(min_length=1, max_length=4096)]
Digest = Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")]

_REPO = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: What people call the Neural Engine without saying which of its engines (original facts 2.3).
NEURAL_ENGINE_NAMES = frozenset({"ane", "coreml", "neural_engine"})
_NOT_IN_ID = re.compile(r"[^a-z0-9._-]+")


#: Other names of the parameter ``task`` (original facts 2.3).
TASK_ALIASES = ("kind", "capability")


class DetailedFile(Params):
    """A file with the digest it must have."""

    url: PathText
    sha256: Digest


def _form(spec: object) -> str | None:
    """Which of the two forms a file is given in; in brackets, for it is no part of its place in the parameters."""
    if isinstance(spec, str):
        return "(name)"
    return "(object)" if isinstance(spec, Mapping | DetailedFile) else None


#: A file: its name or address alone, or with its digest.
FileSpec = Annotated[
    Annotated[PathText, Tag("(name)")] | Annotated[DetailedFile, Tag("(object)")],
    Discriminator(
        _form, custom_error_type="file_spec", custom_error_message="A file is a name, or an object of url and sha256"
    ),
]


class ModelFiles(Params):
    """The files of a model."""

    model: FileSpec = "model.safetensors"
    tokenizer: FileSpec = "tokenizer.json"
    config: FileSpec = "config.json"
    extra: list[FileSpec] = Field(default_factory=list, max_length=1000)


class Prompts(Params):
    """What the model wants before a text."""

    query: Annotated[StrictStr, Field(max_length=4096)] = ""
    document: Annotated[StrictStr, Field(max_length=4096)] = ""


class ModelLoadParams(Params):
    """What to load and how to compute it."""

    source: Literal["file", "hf", "url"]
    path: PathText | None = None
    repo: Annotated[StrictStr, Field(max_length=200)] | None = None
    revision: Annotated[StrictStr, Field(max_length=200)] | None = None
    url: PathText | None = None
    files: ModelFiles = Field(default_factory=ModelFiles)
    expected_digest: Digest | None = None
    engine: Name
    model_id: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None
    task: Annotated[Task, Field(validation_alias=AliasChoices("task", *TASK_ALIASES))] = "embed"
    pooling: Pooling = "mean"
    normalize: StrictBool = True
    max_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] | None = None
    dtype: DType | None = None
    quant: Annotated[StrictStr, Field(max_length=32)] = "none"
    family: Name | None = None
    prompts: Prompts = Field(default_factory=Prompts)
    pin: StrictBool = False
    request_key: Annotated[StrictStr, Field(max_length=256)] | None = None
    deadline_ms: Milliseconds | None = None


class PreloadParams(ModelLoadParams):
    """A load the settings ask for, which alone may name a profile."""

    profile: Name | None = None


@value_object
class LoadPlan:
    """``request`` names every file; those of ``fetched`` are to be put beside those of its directory first.

    ``pin`` keeps what was fetched when the model is gone.
    """

    request: LoadRequest
    fetched: tuple[WantedFile, ...]
    pin: bool = False


@value_object
class _Spec:
    role: str
    place: str
    sha256: str | None


def load_plan(params: ModelLoadParams) -> LoadPlan:
    """The plan of one load.

    Raises:
        InvalidRequest: a parameter the source needs is missing, a revision moves, an address has no digest or is of a
            branch; details name parameter or file.

    """
    specs = _specs(params)
    for spec in specs:
        if _is_address(spec.place) and (fault := address_fault(spec.place)) is not None:
            raise _bad_file(spec, fault)
    if params.source == "file":
        _refuse_local_extras(params, specs)
        base = None
        if params.path is None:
            raise _lacks("path", "source 'file' needs path, the directory of the model's files")
    else:
        base = _hub_base(params) if params.source == "hf" else _url_base(params)
    fetched = tuple(_wanted(spec, base) for spec in specs if base is not None or _is_address(spec.place))
    names = {spec.role: _name(spec) for spec in specs}
    _refuse_same_names([_name(spec) for spec in specs])
    digests = {spec.role: spec.sha256 for spec in specs}
    return LoadPlan(_request(params, names, digests, fetched), fetched, params.pin)


def _specs(params: ModelLoadParams) -> list[_Spec]:
    files, remote = params.files, params.source != "file"
    given = [
        ("model", files.model, params.expected_digest),
        ("tokenizer", files.tokenizer, None),
        ("config", files.config, None),
    ]
    if remote and "config" not in files.model_fields_set:
        # Some formats carry their own; one that does not finds it missing and says so.
        given.pop()
    given += [(f"extra:{number}", spec, None) for number, spec in enumerate(files.extra)]
    return [
        _Spec(role, spec.url, spec.sha256) if isinstance(spec, DetailedFile) else _Spec(role, spec, fallback)
        for role, spec, fallback in given
    ]


def _refuse_local_extras(params: ModelLoadParams, specs: Sequence[_Spec]) -> None:
    """Shards are found beside their index; no other format than package sets takes another file."""
    if _is_package(specs[0]):
        return
    local = [spec for spec in specs if spec.role.startswith("extra:") and not _is_address(spec.place)]
    if local:
        raise _lacks(
            "files.extra", f"files.extra holds {len(local)} file(s) of path and engine {params.engine!r} takes none"
        )


def _hub_base(params: ModelLoadParams) -> str:
    if params.repo is None or not _REPO.fullmatch(params.repo):
        raise _lacks("repo", f"source 'hf' needs repo, written owner/name, not {params.repo!r}")
    if params.revision is None or not _COMMIT.fullmatch(params.revision):
        raise _lacks(
            "revision",
            f"revision {params.revision!r} is no commit of 40 hex digits; a branch moves, so name the commit it is at",
        )
    return f"{params.repo}/resolve/{params.revision}/"


def _url_base(params: ModelLoadParams) -> str:
    base = params.url or ""
    if base and not is_web_address(base):
        raise _lacks("url", f"url {base[:200]!r} is no http(s) address; correct it")
    if base and (fault := address_fault(base)) is not None:
        raise _lacks("url", f"url {base[:200]!r} {fault}")
    return base


def _wanted(spec: _Spec, base: str | None) -> WantedFile:
    address = spec.place if _is_address(spec.place) else _below(base or "", spec)
    if names_branch(address):
        raise _bad_file(spec, "names a branch, which moves; name a revision")
    if spec.sha256 is None:
        raise _bad_file(spec, "has no digest to be held against; give it as {url, sha256}")
    return WantedFile(spec.role, _name(spec), spec.sha256, None, address)


def _below(base: str, spec: _Spec) -> str:
    if not base:
        raise _bad_file(spec, "is no http(s) address and there is no url it is below; give one of them")
    parts = PurePosixPath(spec.place).parts
    if "://" in spec.place or holds_control(spec.place) or spec.place.startswith("/") or ".." in parts:
        raise _bad_file(spec, "is no name below the source; name a file of it")
    return urljoin(base, spec.place) if is_web_address(base) else base + spec.place


def _name(spec: _Spec) -> str:
    """What the file is called in the directory it is loaded from."""
    if not _is_address(spec.place):
        return spec.place
    return PurePosixPath(urlsplit(spec.place).path).name or spec.role


def _is_address(place: str) -> bool:
    if "://" in place and not is_web_address(place):
        raise InvalidRequest(
            f"file {place[:200]!r} is neither a name nor an http(s) address; correct it", details={"file": place[:200]}
        )
    return is_web_address(place)


def _refuse_same_names(names: Sequence[str]) -> None:
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise InvalidRequest(f"file {doubled!r} is named twice; name each file once", details={"file": doubled})


def _request(
    params: ModelLoadParams,
    names: dict[str, str],
    digests: dict[str, str | None],
    fetched: Sequence[WantedFile],
) -> LoadRequest:
    def named(role: str, default: str) -> NamedFile:
        return (names.get(role, default), digests.get(role))

    model = named("model", "model.safetensors")
    return LoadRequest(
        directory=params.path or "",
        model=model,
        tokenizer=named("tokenizer", "tokenizer.json"),
        config=named("config", "config.json"),
        engine=_engine(params.engine, model[0]),
        model_id=params.model_id or (_default_id(params, fetched) if fetched else None),
        task=params.task,
        pooling=params.pooling,
        normalize=params.normalize,
        max_tokens=params.max_tokens,
        dtype=params.dtype,
        quant=params.quant,
        family=params.family,
        prompts=TextPrompts(params.prompts.query, params.prompts.document),
        extra=tuple((name, digests[role]) for role, name in names.items() if role.startswith("extra:"))
        if _is_package_name(model[0])
        else (),
        profile=params.profile if isinstance(params, PreloadParams) else None,
    )


def _engine(asked: str, model: str) -> str:
    """The engine that runs such a file: the Neural Engine has one for package sets and one for checkpoints."""
    if asked not in NEURAL_ENGINE_NAMES:
        return asked
    return "ane-coreml" if _is_package_name(model) else "ane"


def _is_package(spec: _Spec) -> bool:
    return _is_package_name(_name(spec))


def _is_package_name(name: str) -> bool:
    return name.endswith(".zip")


def _default_id(params: ModelLoadParams, fetched: Sequence[WantedFile]) -> str:
    """The repository's or the file's name and eight digits of the model's digest."""
    model = next((file for file in fetched if file.role == "model"), fetched[0])
    stem = (params.repo or PurePosixPath(model.name).stem).rpartition("/")[2]
    name = _NOT_IN_ID.sub("-", stem.lower()).strip("-.") or "model"
    return f"{name[:100]}-{model.sha256[:8]}"


def _lacks(parameter: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, details={"parameter": parameter})


def _bad_file(spec: _Spec, fault: str) -> InvalidRequest:
    return InvalidRequest(f"file {spec.place[:200]!r} {fault}", details={"file": spec.place[:200]})
