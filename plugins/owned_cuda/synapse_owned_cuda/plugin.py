"""The CUDA backend: the host's model families on kernels of its own. Entry point ``cuda``, engine ``owned-cuda``.

No GPU has run it yet. Importing this module costs nothing; each hook imports what it needs.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import (
    BackendDescription,
    BatchPolicy,
    CapabilityEvidence,
    DType,
    LoadSpec,
    PluginError,
    hookimpl,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synapse_host.hookspecs import BackendSettings, CheckNumbers, EmbedBatch, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.decoder import OwnedDecoder
    from synapse_host.owned_engine.engine import ModelSettings
    from synapse_host.owned_engine.weights import CheckpointWeights
    from synapse_owned_cuda.cuda_backend import CudaBackend
    from synapse_owned_cuda.cuda_model import CudaModel
    from synapse_owned_cuda.device import Device

ENGINE = "owned-cuda"
DTYPES: tuple[DType, ...] = ("f16", "f32")
#: Smallest cosine to the reference a vector may have, by activation type; held on the kernels run on a CPU.
TOLERANCES = {"cosine_f32": "0.999999", "cosine_f16": "0.99999"}
#: Rows and padded tokens of a group (original facts, section 4: bulk quantum); not measured here.
RECOMMENDED_BATCH = BatchPolicy(rows=8, token_budget=3072)
#: The modules of this plugin that decide no bits.
_ASIDE = ("driver", "evidence", "lane_limits", "loss", "memory_plan", "ptxas_log", "request_steps", "single_ops")


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; asks no driver."""
    import synapse_owned_cuda
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_owned_cuda.evidence import PLATFORMS, build_flags

    families = tuple(FAMILIES)
    kernels = [*revision.shared_sources(), *revision.package_sources(synapse_owned_cuda, _ASIDE)]
    return BackendDescription(
        backend="cuda",
        engine=ENGINE,
        engine_version=version("synapse-host-owned-cuda"),
        build_flags=build_flags(),
        tasks=("embed", "rerank"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=DTYPES,
        device_class="cuda",
        platforms=PLATFORMS,
        extra="cuda",
        owned=True,
        abort_capable=True,
        kernel_revision=_with_kernels(revision.kernel_revision(kernels)),
        manifest_digest=revision.manifest_digest(
            engine=ENGINE, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
        recommended_batch=RECOMMENDED_BATCH,
    )


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """Hold driver, device and CuPy against the floor; the driver alone is asked."""
    from synapse_owned_cuda import evidence

    return evidence.probe(settings)


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> CudaModel:
    """Hold the device's memory to the lane, take the checkpoint there and compute one short row."""
    from functools import partial

    from synapse_host.owned_engine.loading import load_engine
    from synapse_host.owned_engine.shape_policy import BucketLadder
    from synapse_owned_cuda.cuda_model import CudaModel
    from synapse_owned_cuda.loss import device_faults_typed

    made: list[CudaBackend] = []

    def backend(weights: CheckpointWeights, settings: ModelSettings) -> CudaBackend:
        made.append(_backend(weights, settings))
        return made[0]

    ladder = partial(BucketLadder, token_budget=RECOMMENDED_BATCH.token_budget)
    with device_faults_typed():
        return CudaModel(load_engine(spec, DTYPES, backend, progress, ladder), made[0])


@hookimpl
def synapse_embed(model: CudaModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    from synapse_owned_cuda.loss import device_faults_typed

    with device_faults_typed():
        return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: CudaModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    from synapse_owned_cuda.loss import device_faults_typed

    with device_faults_typed():
        return model.rerank(sequences, progress)


@hookimpl
def synapse_self_check(model: CudaModel, progress: Progress) -> Sequence[CheckNumbers]:
    """Every operation alone and a tiny model of every family, on the model's device."""
    from synapse_host.owned_engine.engine import OwnedEngine
    from synapse_host.owned_engine.self_check import checked_numbers
    from synapse_owned_cuda.cuda_backend import CudaBackend
    from synapse_owned_cuda.loss import device_faults_typed
    from synapse_owned_cuda.single_ops import SingleOps

    device = _open_device()

    def engine(weights: CheckpointWeights, tiny: ModelSettings) -> OwnedEngine:
        # The pool stays as the lane set it: a tiny model needs a corner of it.
        backend = CudaBackend(weights, device, max_tokens=tiny.max_tokens, dtype=tiny.dtype)
        return OwnedEngine(backend, tiny)

    with device_faults_typed():
        return checked_numbers(SingleOps(device, model.settings.dtype), engine, model.settings, progress)


@hookimpl
def synapse_unload(model: CudaModel) -> bool:
    """Drop the weights."""
    model.unload()
    return True


def load_decoder(spec: LoadSpec, progress: Progress) -> OwnedDecoder:
    """A model that generates on this device; no hook reaches it yet, tests and the device benchmark do."""
    from synapse_host.owned_engine import loading

    return loading.load_decoder(spec, DTYPES, _backend, progress)


def _backend(weights: CheckpointWeights, settings: ModelSettings) -> CudaBackend:
    from synapse_owned_cuda.cuda_backend import CudaBackend
    from synapse_owned_cuda.lane_limits import limit_lane

    device = _open_device()
    limit_lane(weights, settings, device, RECOMMENDED_BATCH.token_budget)
    return CudaBackend(weights, device, max_tokens=settings.max_tokens, dtype=settings.dtype)


def _open_device() -> Device:
    from synapse_owned_cuda.cupy_device import CupyDevice
    from synapse_owned_cuda.driver import read_driver
    from synapse_owned_cuda.evidence import best_place

    try:
        return CupyDevice(best_place(read_driver().gpus))
    except ImportError as missing:
        message = f"CuPy cannot be imported ({missing}); install it with: pip install 'synapse-host[cuda]'"
        raise PluginError("backend_missing", message) from missing


def _with_kernels(revision: str) -> str:
    """The revision of the Python sources and the text of the kernels as one name."""
    from hashlib import sha256

    from synapse_owned_cuda.kernel_table import SOURCE

    return sha256(f"{revision}\0".encode() + SOURCE.read_bytes()).hexdigest()
