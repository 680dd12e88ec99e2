"""The sections of ``synapse.toml`` that are no business of the host but of the processes of one backend each.

Read and checked with the other settings; what was changed goes to those processes as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """One section of the file; an unknown key and a value of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _zero_or_one(value: object) -> object:
    return bool(value) if type(value) is int and value in (0, 1) else value


def _number_as_text(value: object) -> object:
    """A variable such as 7.5 was read as TOML would, which makes it a number."""
    return str(value) if type(value) in (int, float) else value


#: A boolean that a shell may also spell 1 or 0.
Switch = Annotated[bool, BeforeValidator(_zero_or_one)]


class MetalSettings(Section):
    """The Metal backends on a machine without Metal, for their developers."""

    allow_cpu: Switch = Field(False, description="Let them run on MLX's CPU device, which shows in every identity.")


class CudaSettings(Section):
    """A pair that stands in for what the CUDA driver says, for tests; one of the two alone counts for nothing."""

    driver_api: int = Field(0, ge=0, description="Driver API to act on, such as 12040; 0: the driver's own.")
    compute_capability: Annotated[str, BeforeValidator(_number_as_text)] = Field(
        "", description="Compute capability to act on, such as 7.5; empty: the device's own."
    )


class VulkanSettings(Section):
    """The Vulkan backend on a machine without a GPU, for its developers."""

    allow_software_device: Switch = Field(
        False, description="Let it run on a software device, which shows in every identity."
    )


class AneSettings(Section):
    """The Neural Engine backends on a machine without one, for their developers."""

    allow_interpreter: Switch = Field(
        False, description="Let numpy run their programs, slowly, which shows in every identity."
    )


#: Section -> the backends whose processes are told of it.
BACKENDS_OF_SECTION: Mapping[str, tuple[str, ...]] = {
    "metal": ("metal", "metal-decode"),
    "cuda": ("cuda",),
    "vulkan": ("vulkan",),
    "ane": ("ane", "ane-coreml"),
}


def told_of(section: BaseModel) -> dict[str, str]:
    """The keys of a section that were changed, as text."""
    return {key: _as_text(value) for key, value in section.model_dump(exclude_defaults=True).items()}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
