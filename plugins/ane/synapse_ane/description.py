"""What the two Neural Engine backends say of themselves; they differ in engine and in what they load."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synapse_ane.device import Device

#: Smallest cosine to the reference a vector may have; held by the plugin's tests on the interpreted programs.
TOLERANCES = {"cosine_f16": "0.9999"}


@cache
def revision_of(kernels: tuple[Path, ...]) -> str:
    """The kernel revision of the sources this process runs, read once: what HELLO said names what is compiled."""
    from synapse_host.owned_engine.kernel_revision import kernel_revision

    return kernel_revision(kernels)


def describe(
    backend: str,
    engine: str,
    formats: Sequence[str],
    families: Sequence[str],
    kernels: Sequence[Path],
    device: Device,
    build_flags: dict[str, str],
) -> BackendDescription:
    """The description of one of the two backends on ``device``; imports no coremltools."""
    from synapse_ane.evidence import coremltools_version
    from synapse_host.owned_engine import kernel_revision as revision

    coremltools = ".".join((coremltools_version() or "none").split(".")[:2])
    return BackendDescription(
        backend=backend,
        engine=engine,
        engine_version=version("synapse-host-ane"),
        build_flags={**build_flags, "coremltools": coremltools, "device": device.kind},
        tasks=("embed", "rerank"),
        model_formats=tuple(formats),
        families=tuple(families),
        dtypes=("f16",),
        device_class=device.device_class,
        platforms=device.platforms,
        extra="ane",
        owned=True,
        abort_capable=True,
        kernel_revision=revision_of(tuple(kernels)),
        manifest_digest=revision.manifest_digest(
            engine=engine, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
    )
