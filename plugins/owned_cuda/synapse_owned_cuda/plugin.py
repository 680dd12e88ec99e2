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
    from pathlib import Path

    from synapse_host.hookspecs import BackendSettings, EmbedBatch, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
    from synapse_host.owned_engine.weights import CheckpointWeights
    from synapse_owned_cuda.cuda_backend import CudaBackend
    from synapse_owned_cuda.device import Device

ENGINE = "owned-cuda"
DTYPES: tuple[DType, ...] = ("f16", "f32")
#: Smallest cosine to the reference a vector may have, by activation type; held on the kernels run on a CPU.
TOLERANCES = {"cosine_f32": "0.999999", "cosine_f16": "0.99999"}
#: Rows and padded tokens of a group (original facts, section 4: bulk quantum); not measured here.
RECOMMENDED_BATCH = BatchPolicy(rows=8, token_budget=3072)
#: The modules of this plugin that decide bits, beside its kernels.
_SOURCES = ("cuda_backend", "cuda_ops", "cupy_device", "handles", "launch_shapes")


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; asks no driver."""
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_owned_cuda.evidence import PLATFORMS

    families, kernels = tuple(FAMILIES), [*revision.shared_sources(), *_sources()]
    return BackendDescription(
        backend="cuda",
        engine=ENGINE,
        engine_version=version("synapse-host-owned-cuda"),
        build_flags={"virtual_arch": "compute_75"},
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
    from synapse_owned_cuda.evidence import judge, read_machine

    return judge(read_machine(settings))


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> OwnedEngine:
    """Take the checkpoint to the device and compute one short row."""
    from functools import partial

    from synapse_host.owned_engine.loading import load_engine
    from synapse_host.owned_engine.shape_policy import BucketLadder

    ladder = partial(BucketLadder, token_budget=RECOMMENDED_BATCH.token_budget)
    return load_engine(spec, DTYPES, _backend, progress, ladder)


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: OwnedEngine, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.rerank(sequences, progress)


@hookimpl
def synapse_unload(model: OwnedEngine) -> bool:
    """Drop the weights."""
    model.unload()
    return True


def _backend(weights: CheckpointWeights, settings: ModelSettings) -> CudaBackend:
    from synapse_owned_cuda.cuda_backend import CudaBackend

    return CudaBackend(weights, _open_device(), max_tokens=settings.max_tokens, dtype=settings.dtype)


def _open_device() -> Device:
    from synapse_owned_cuda.cupy_device import CupyDevice

    try:
        return CupyDevice()
    except ImportError as missing:
        message = f"CuPy cannot be imported ({missing}); install it with: pip install 'synapse-host[cuda]'"
        raise PluginError("backend_missing", message) from missing


def _sources() -> list[Path]:
    from pathlib import Path

    return [Path(__file__).with_name(f"{name}.py") for name in _SOURCES]


def _with_kernels(revision: str) -> str:
    """The revision of the Python sources and the text of the kernels as one name."""
    from hashlib import sha256

    from synapse_owned_cuda.kernel_table import SOURCE

    return sha256(f"{revision}\0".encode() + SOURCE.read_bytes()).hexdigest()
