"""What is asked of Core ML, behind one small interface: open a function of a package, run it, say where it is placed.

``CoreMLTools`` is the real thing and works on a Mac alone. The tests of everything above it run on
``synapse_ane.interpreted_runtime``, which obeys the same contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from synapse_ane.mil import ct

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the operations of one function are to run, by device, constants left out."""

    neural_engine: int
    gpu: int
    cpu: int

    @property
    def share(self) -> float:
        """Part of the dispatchable operations on the Neural Engine, 0 to 1; 0 where nothing is dispatched."""
        total = self.neural_engine + self.gpu + self.cpu
        return self.neural_engine / total if total else 0.0


class LoadedProgram(Protocol):
    """One function of a package, compiled and ready."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Its outputs by name; raises ``RuntimeError`` when the engine refuses."""


class CoreMLRuntime(Protocol):
    """The engine programs run on."""

    def load(self, package: Path, function: str) -> LoadedProgram:
        """Compile ``function`` of ``package`` for the Neural Engine; tens of seconds the first time."""

    def placement(self, package: Path, function: str) -> Placement:
        """Where the operations of ``function`` are to run."""


class CoreMLTools:
    """Core ML through coremltools. Everything it names is there on every platform, and runs on macOS alone."""

    def load(self, package: Path, function: str) -> LoadedProgram:
        return ct.models.MLModel(  # type: ignore[no-any-return]
            str(package), compute_units=ct.ComputeUnit.CPU_AND_NE, function_name=function
        )

    def placement(self, package: Path, function: str) -> Placement:
        from coremltools.models.compute_device import (
            MLCPUComputeDevice,
            MLGPUComputeDevice,
            MLNeuralEngineComputeDevice,
        )
        from coremltools.models.compute_plan import MLComputePlan

        compiled = ct.models.utils.compile_model(str(package))
        plan = MLComputePlan.load_from_path(compiled, compute_units=ct.ComputeUnit.CPU_AND_NE)
        counted = dict.fromkeys((MLNeuralEngineComputeDevice, MLGPUComputeDevice, MLCPUComputeDevice), 0)
        for operation in plan.model_structure.program.functions[function].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            # Constants and what is folded away are dispatched nowhere.
            if usage is not None and usage.preferred_compute_device is not None:
                counted[type(usage.preferred_compute_device)] += 1
        return Placement(counted[MLNeuralEngineComputeDevice], counted[MLGPUComputeDevice], counted[MLCPUComputeDevice])


def only_output(outputs: Arrays, name: str) -> npt.NDArray[Any]:
    """The output called ``name``; raises ``RuntimeError`` naming what came instead."""
    if name not in outputs:
        raise RuntimeError(f"the program gave {', '.join(sorted(outputs)) or 'nothing'} and not {name!r}")
    return np.asarray(outputs[name])
