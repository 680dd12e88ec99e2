"""What the two Metal backends say of themselves; they differ in engine and tasks."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, BatchPolicy
from synapse_owned_metal.bucket_ladder import BUCKET_POLICY, MOST_ROWS, TOKEN_BUDGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synapse_host.hookspecs import Task
    from synapse_owned_metal.device import Device

#: Smallest cosine to the reference a vector may have, by activation type; held by the plugin's tests.
TOLERANCES = {"cosine_f32": "0.999999", "cosine_f16": "0.99999"}
#: The modules of this plugin that decide no bits.
_ASIDE = ("evidence", "lane_limits", "memory_plan", "single_ops", "trial")


def describe(
    backend: str, engine: str, tasks: tuple[Task, ...], families: Sequence[str], device: Device
) -> BackendDescription:
    """The description of one of the two backends on ``device``; imports neither MLX nor numpy."""
    import synapse_owned_metal
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import MODEL_FORMAT

    kernels = [*revision.shared_sources(), *revision.package_sources(synapse_owned_metal, _ASIDE)]
    return BackendDescription(
        backend=backend,
        engine=engine,
        engine_version=version("synapse-host-owned-metal"),
        build_flags=_build_flags(device),
        tasks=tasks,
        model_formats=(MODEL_FORMAT,),
        families=tuple(families),
        dtypes=device.dtypes,
        device_class=device.device_class,
        platforms=device.platforms,
        extra="metal",
        owned=True,
        abort_capable=True,
        kernel_revision=revision.kernel_revision(kernels),
        manifest_digest=revision.manifest_digest(
            engine=engine, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
        recommended_batch=BatchPolicy(rows=MOST_ROWS, token_budget=TOKEN_BUDGET),
        # Tested on the CPU device. On the GPU MLX chooses its product kernel by the rows of a call.
        batch_invariant=device.kind == "cpu",
    )


def _build_flags(device: Device) -> dict[str, str]:
    """What of the build moves bits, apart from the precision, which the host adds per lane (reading 35)."""
    from synapse_owned_metal.evidence import mlx_version

    return {
        "bucket_policy": BUCKET_POLICY,
        "device": device.kind,
        "graphs": "compiled" if device.compiles else "as-written",
        "mlx": ".".join((mlx_version() or "none").split(".")[:2]),
    }
