"""The CUDA backend, begun: it says whether a machine could run it and why not. Entry point ``cuda``, ``owned-cuda``.

There is no engine yet, so it refuses every machine; one that would do is told so. Importing this module costs nothing.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, PluginError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from synapse_host.hookspecs import BackendSettings, EmbedBatch, Progress, TokenIds

ENGINE = "owned-cuda"
_UNFINISHED = "this version has no CUDA engine yet; use another backend"


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; asks no driver."""
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_owned_cuda.evidence import PLATFORMS

    families, kernels = tuple(FAMILIES), revision.shared_sources()
    return BackendDescription(
        backend="cuda",
        engine=ENGINE,
        engine_version=version("synapse-host-owned-cuda"),
        build_flags={"virtual_arch": "compute_75"},
        tasks=("embed", "rerank"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=("f16", "f32"),
        device_class="cuda",
        platforms=PLATFORMS,
        extra="cuda",
        owned=True,
        abort_capable=True,
        kernel_revision=revision.kernel_revision(kernels),
        manifest_digest=revision.manifest_digest(engine=ENGINE, families=families, kernels=kernels, tolerances={}),
    )


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """Hold driver and device against the floor; a machine above it is refused for want of an engine."""
    from synapse_owned_cuda.evidence import judge, read_machine

    found = judge(read_machine(settings))
    if found.status == "refused":
        return found
    message = f"driver and device would do; {_UNFINISHED}"
    return replace(found, status="refused", reason="worker_missing", reason_detail="engine_not_built", message=message)


@hookimpl
def synapse_load(spec: LoadSpec) -> NoReturn:
    """Refused: there is no engine yet."""
    raise PluginError("backend_missing", _UNFINISHED)


@hookimpl
def synapse_embed(model: Any, batch: EmbedBatch, progress: Progress) -> NoReturn:
    """Never reached: nothing is ever loaded."""
    raise PluginError("backend_missing", _UNFINISHED)


@hookimpl
def synapse_rerank(model: Any, sequences: Sequence[TokenIds], progress: Progress) -> NoReturn:
    """Never reached: nothing is ever loaded."""
    raise PluginError("backend_missing", _UNFINISHED)


@hookimpl
def synapse_unload(model: Any) -> bool:
    """Nothing is ever loaded."""
    return True
