"""What runs the programs: Core ML, or the interpreter where a developer let it through.

The choice is made from the operator's settings and the machine alone, so that the process that describes the backend
and the one that computes agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from synapse_ane.evidence import PLATFORMS, judge, read_machine

if TYPE_CHECKING:
    from synapse_ane.core_ml_runtime import CoreMLRuntime
    from synapse_host.hookspecs import BackendSettings, DeviceClass

#: Where numpy runs and nobody takes its speed for that of a Neural Engine.
INTERPRETER_PLATFORMS = ("linux", "darwin")


@dataclass(frozen=True, slots=True)
class Device:
    """One of the two. ``kind`` stands in ``build_flags``, so it is part of every fingerprint."""

    kind: Literal["neural-engine", "interpreter"]

    @property
    def device_class(self) -> DeviceClass:
        """What a reply calls the device."""
        return "ane" if self.kind == "neural-engine" else "cpu"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Where a backend on this device runs."""
        return PLATFORMS if self.kind == "neural-engine" else INTERPRETER_PLATFORMS

    def runtime(self) -> CoreMLRuntime:
        """The runtime; imports coremltools, and on a Mac what drives the device."""
        if self.kind == "interpreter":
            from synapse_ane.interpreted_runtime import InterpretedRuntime

            return InterpretedRuntime()
        from synapse_ane.core_ml_runtime import CoreMLTools

        return CoreMLTools()


def chosen_device(settings: BackendSettings) -> Device:
    """The Neural Engine, unless the operator's ``allow_interpreter`` meets a machine without one."""
    if settings.get("allow_interpreter") != "true" or judge(read_machine()).status == "ok":
        return Device("neural-engine")
    return Device("interpreter")
