"""What is asked of Core ML, behind one small interface: compile a package, open a function, run it, say where it runs.

``CoreMLTools`` is the real thing and works on a Mac alone. The tests of everything above it run on
``synapse_ane.interpreted_runtime``, which obeys the same contract.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from synapse_ane.mil import ct

Arrays = Mapping[str, npt.NDArray[Any]]
#: Kind of the folder Core ML compiles a package into.
COMPILED_SUFFIX = ".mlmodelc"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the operations of one function are to run, by device, constants left out.

    ``elsewhere`` are the kinds of operation that are not on the Neural Engine, by name.
    """

    neural_engine: int
    gpu: int
    cpu: int
    elsewhere: frozenset[str] = frozenset()

    @property
    def share(self) -> float | None:
        """Part of the dispatchable operations on the Neural Engine, 0 to 1; None where the place of none is known.

        A plan tells no place of a constant, and none of a function it was not made for.
        """
        total = self.neural_engine + self.gpu + self.cpu
        return self.neural_engine / total if total else None


def least_share(placements: Iterable[Placement]) -> float | None:
    """The least share of any; None where one is not known, since it may be the least."""
    shares = [each.share for each in placements]
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(shares) else None


def together(placements: Iterable[Placement]) -> Placement:
    """The placement of functions that run one after another; of no operation where the place of one's is not known."""
    placements = list(placements)
    if any(each.share is None for each in placements):
        return Placement(0, 0, 0)
    neural_engine = gpu = cpu = 0
    elsewhere: frozenset[str] = frozenset()
    for each in placements:
        neural_engine, gpu, cpu = neural_engine + each.neural_engine, gpu + each.gpu, cpu + each.cpu
        elsewhere |= each.elsewhere
    return Placement(neural_engine, gpu, cpu, elsewhere)


class LoadedProgram(Protocol):
    """One function of a compiled package, ready to run."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Its outputs by name; raises ``RuntimeError`` when the engine refuses."""


class CoreMLRuntime(Protocol):
    """The engine programs run on. ``function`` is None for a package that has one function alone."""

    def compile(self, package: Path, compiled: Path) -> None:
        """Make the folder ``compiled``, which is not there yet, of a package; raises ``RuntimeError``."""

    def load(self, compiled: Path, function: str | None) -> LoadedProgram:
        """Make a function ready on the Neural Engine, tens of seconds the first time; raises ``RuntimeError``."""

    def placement(self, compiled: Path, function: str | None) -> Placement:
        """Where the operations of a function are to run; raises ``RuntimeError``."""


class CoreMLProgram:
    """One function of a compiled package, on the Neural Engine."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def predict(self, inputs: Arrays) -> Arrays:
        with _refusals("the program could not be run"):
            return self._model.predict(dict(inputs))  # type: ignore[no-any-return]


class CoreMLTools:
    """Core ML through coremltools. Everything it names is there on every platform, and runs on macOS alone."""

    def __init__(self) -> None:
        # The compiler of the Neural Engine, another process, does not find files below a temporary folder of ours.
        os.environ.pop("TMPDIR", None)

    def compile(self, package: Path, compiled: Path) -> None:
        if compiled.exists():
            # It would be moved into the folder that is there.
            raise RuntimeError(f"{compiled} is there already; remove it")
        with _refusals(f"{package.name} could not be compiled"):
            ct.models.utils.compile_model(str(package), destination_path=str(compiled))

    def load(self, compiled: Path, function: str | None) -> LoadedProgram:
        with _refusals(f"{compiled.name} could not be loaded"):
            model = ct.models.CompiledMLModel(
                str(compiled), compute_units=ct.ComputeUnit.CPU_AND_NE, function_name=function
            )
        return CoreMLProgram(model)

    def placement(self, compiled: Path, function: str | None) -> Placement:
        with _refusals(f"{compiled.name} has no compute plan"):
            from coremltools.models.compute_plan import MLComputePlan

            plan = MLComputePlan.load_from_path(str(compiled), compute_units=ct.ComputeUnit.CPU_AND_NE)
            program = plan.model_structure.program
            if program is None:
                raise RuntimeError("it is no ML program; convert it with convert_to='mlprogram'")
            operations = _function(program.functions, function, compiled.name).block.operations
            return _counted((each, plan.get_compute_device_usage_for_mlprogram_operation(each)) for each in operations)


def _counted(usages: Iterable[tuple[Any, Any]]) -> Placement:
    """The placement of operations, each with the usage a compute plan tells of it."""
    from coremltools.models.compute_device import MLGPUComputeDevice, MLNeuralEngineComputeDevice

    counted = {"neural_engine": 0, "gpu": 0, "cpu": 0}
    elsewhere = set()
    for operation, usage in usages:
        # Constants and what is folded away are dispatched nowhere.
        if usage is None or usage.preferred_compute_device is None:
            continue
        device = usage.preferred_compute_device
        if isinstance(device, MLNeuralEngineComputeDevice):
            counted["neural_engine"] += 1
            continue
        counted["gpu" if isinstance(device, MLGPUComputeDevice) else "cpu"] += 1
        elsewhere.add(operation.operator_name.rpartition(".")[2])
    return Placement(**counted, elsewhere=frozenset(elsewhere))


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Core ML's refusals, which coremltools raises as whatever is at hand, as ``RuntimeError``."""
    try:
        yield
    except Exception as refused:
        raise RuntimeError(f"{what}: {refused}") from refused


def _function(functions: Mapping[str, Any], name: str | None, package: str) -> Any:
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    if name is None or name not in functions:
        raise RuntimeError(f"{package} has {', '.join(sorted(functions)) or 'no function'} and no {name!r}")
    return functions[name]


def only_output(outputs: Arrays, name: str) -> npt.NDArray[Any]:
    """The output called ``name``; raises ``RuntimeError`` naming what came instead."""
    if name not in outputs:
        raise RuntimeError(f"the program gave {sorted(outputs)!a:.200} and not {name!r}")
    return np.asarray(outputs[name])
