"""The plugin contract: the hooks a backend implements and the values that pass through them.

Hooks are synchronous and one plugin is registered per process, so a hook call is a direct call. Section one runs
in a bounded child that only describes and probes; section two runs in the worker. This module needs only pluggy:
a plugin may import it without paying for numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import pluggy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    TokenIds = npt.NDArray[np.int32]
    Vectors = npt.NDArray[np.float32]

#: Version of this contract; a plugin states the one it was written for and the host refuses any other.
PLUGIN_API_VERSION = 1
PROJECT_NAME = "synapse_host"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)

Task = Literal["embed", "rerank", "generate"]
Pooling = Literal["mean", "cls", "last"]
DType = Literal["f32", "bf16", "f16"]
DeviceClass = Literal["cpu", "metal", "ane", "cuda", "vulkan"]
Phase = Literal["setup", "inference", "control"]
#: What the numbers of a check are: results of one operation, unit vectors of a model, raw scores of a model.
CheckKind = Literal["operation", "vectors", "scores"]
#: What the operator set for a backend in the host's settings, by key; empty where nothing was.
BackendSettings: TypeAlias = Mapping[str, str]
#: Why a backend cannot run here (wire contract section 5, reading 3).
RefusalReason = Literal["not_supported_on_platform", "device_missing", "device_below_floor", "worker_missing"]


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Measured advice for one call: at most ``rows`` rows and ``token_budget`` padded tokens."""

    rows: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class PackedSupport:
    """Programs that hold several rows of different length side by side in a fixed number of columns.

    ``widths`` are the columns a program may be compiled for, ``max_rows`` the most rows of one. Both go into HELLO.
    """

    widths: tuple[int, ...]
    max_rows: int


@dataclass(frozen=True, slots=True)
class BackendDescription:
    """What a backend is, without touching its device.

    ``engine``, ``engine_version`` and ``build_flags`` are the identity sent in HELLO and folded into every
    fingerprint. ``dtypes`` lists the activation types usable on this machine, the default first. ``batch_invariant``
    promises that a row has the same bits alone, in any batch and at any place in it; the conformance suite holds a
    backend to what it says.
    """

    backend: str
    engine: str
    engine_version: str
    build_flags: Mapping[str, str]
    tasks: tuple[Task, ...]
    model_formats: tuple[str, ...]
    families: tuple[str, ...]
    dtypes: tuple[DType, ...]
    device_class: DeviceClass
    platforms: tuple[str, ...]
    extra: str
    owned: bool
    abort_capable: bool
    kernel_revision: str | None = None
    manifest_digest: str | None = None
    recommended_batch: BatchPolicy | None = None
    packed: PackedSupport | None = None
    plugin_api: int = PLUGIN_API_VERSION
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class Premises:
    """What outside of the package and its settings decides about a device: while it stays, the host need not ask again.

    ``environment`` are names of variables; one that ends in ``*`` stands for all that begin so. ``files`` are absolute
    paths, there or not; a folder stands for the files in it, and not for folders below.
    """

    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapabilityEvidence:
    """The outcome of a probe: facts observed on this machine beside the floor they were held against.

    ``reason`` is one of the contract's four, ``reason_detail`` the finer word; both are None when ``status`` is
    ``ok``. ``message`` says what a person should do. ``premises`` are what evidence and description rest on beside the
    machine and its boot, the package and its settings.
    """

    status: Literal["ok", "refused"]
    required: Mapping[str, Any]
    observed: Mapping[str, Any]
    reason: RefusalReason | None = None
    reason_detail: str | None = None
    message: str | None = None
    premises: Premises = field(default_factory=Premises)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One model to load.

    ``artifact_path`` names the verified weight file; ``artifact_fd`` is the descriptor whose bytes were hashed: read
    that one, never the path again. ``config`` is the model's parsed config.json. ``runtime_config`` carries the
    protocol's string pairs, ``dtype``, ``threads`` and ``max_tokens`` among them. ``shards`` are the weight files of a
    checkpoint in several, whose index the artifact then is: descriptors by file name, open until the hook returns.
    """

    artifact_path: str
    artifact_fd: int
    artifact_digest: str
    format: str
    family: str
    config: Mapping[str, Any]
    dtype: DType
    max_tokens: int
    runtime_config: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)


class LoadedModel(Protocol):
    """What ``synapse_load`` returns: opaque to the worker but for these facts.

    ``dims`` is the width of a vector, 0 for a model that makes none. One fact more is read where it is there:
    ``grammar``, True for a model that obeys the grammar of ``synapse_generate``; without it the worker refuses one.
    """

    dims: int
    buckets: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class EmbedBatch:
    """Rows to embed: ``ids`` are the i32 tokens of all rows end to end, ``counts`` the tokens of each row."""

    ids: TokenIds
    counts: Sequence[int]
    item_ids: Sequence[str]
    pooling: Pooling
    normalize: bool


@dataclass(frozen=True, slots=True)
class Generation:
    """What ``synapse_generate`` returns; ``text`` may be empty, the host detokenises ``token_ids``."""

    token_ids: Sequence[int]
    finish_reason: Literal["stop", "length"]
    n_prompt: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class CheckNumbers:
    """What one check of a backend computed; the host holds it against the same check on the reference.

    ``subject`` is the operation, or the family whose tiny model ran; ``label`` tells its checks apart. ``values`` are
    float32 [rows, width]: one row of everything for an operation, unit vectors or raw scores of a family's rows.
    ``scale`` is the size of what was summed, √reduction · magnitude of ``tolerances.op_bound``; the reference's counts.
    ``fault`` says why there are no values, where the check could not be computed.
    """

    kind: CheckKind
    subject: str
    label: str
    values: Vectors
    scale: float = 1.0
    fault: str = ""


class Progress(Protocol):
    """Reports work that is done. ``completed`` strictly grows within a request."""

    def __call__(self, completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None: ...


class PluginError(Exception):
    """A typed refusal of a plugin; ``code`` is one of the worker protocol's ERR codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DeviceGone(PluginError):
    """The device was lost, and every model on it: the worker sends this refusal and ends; the host starts another."""

    def __init__(self, message: str) -> None:
        super().__init__("inference_failed", message)


class BackendHooks:
    """The hooks. Every one is ``firstresult``; a missing hook is an operation the backend does not have."""

    # --- in the describe-and-probe child ---------------------------------------------------------------------

    @hookspec(firstresult=True)
    def synapse_describe(self, settings: BackendSettings) -> BackendDescription:
        """Say what the backend is under the operator's ``settings``. Must not open the device."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_probe_capability(self, settings: BackendSettings) -> CapabilityEvidence:
        """Look at the machine and say whether the backend can run here under ``settings``, with the facts."""
        raise AssertionError("specification only")

    # --- in the worker ---------------------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def synapse_load(self, spec: LoadSpec, progress: Progress, settings: BackendSettings) -> LoadedModel:
        """Load one model. Raise ``PluginError`` with artifact_invalid, config_invalid or oom."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_embed(self, model: LoadedModel, batch: EmbedBatch, progress: Progress) -> Vectors:
        """Embed every row; float32 [rows, dims], in the order of the batch."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_rerank(self, model: LoadedModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
        """Score complete, already composed sequences; float32 [rows]."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_rerank_pairs(
        self, model: LoadedModel, query: TokenIds, candidates: Sequence[TokenIds], progress: Progress
    ) -> Vectors:
        """Compose each pair of query and candidate as the model's own template says and score it; float32 [rows]."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_generate(
        self, model: LoadedModel, prompt: TokenIds, options: Mapping[str, Any], progress: Progress
    ) -> Generation:
        """Decode greedily after ``prompt``; ``options`` holds ``max_tokens`` and, where asked, ``grammar``."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_self_check(
        self, model: LoadedModel, progress: Progress, settings: BackendSettings
    ) -> Sequence[CheckNumbers]:
        """Compute every operation and a tiny model of every family as ``model`` is computed; the host judges."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_unload(self, model: LoadedModel) -> bool:
        """Free the model; True when it is gone."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_admit_shape(self, model: LoadedModel, shape: int, progress: Progress) -> Mapping[str, Any]:
        """Compile and keep one sequence shape; return its inventory (Neural Engine only)."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_evict_shape(self, model: LoadedModel, shape: int, progress: Progress) -> bool:
        """Drop one compiled sequence shape; True when it is gone (Neural Engine only)."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_admit_packed(self, model: LoadedModel, width: int, progress: Progress) -> Mapping[str, Any]:
        """Compile and keep the packed program of ``width`` columns; return the inventory as ``synapse_admit_shape``."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_evict_packed(self, model: LoadedModel, width: int, progress: Progress) -> bool:
        """Drop the packed program of ``width`` columns; True when it is gone."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_placement(self, model: LoadedModel) -> float | None:
        """Share of dispatchable operations placed on the Neural Engine, 0 to 1; None where nothing is compiled yet."""
        raise AssertionError("specification only")

    @hookspec(firstresult=True)
    def synapse_decode_step(self, model: LoadedModel, step: Mapping[str, Any], progress: Progress) -> Mapping[str, Any]:
        """Advance one owned-decode session by one quantum."""
        raise AssertionError("specification only")
