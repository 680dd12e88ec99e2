"""Packages run by the interpreter instead of Core ML: for tests on any platform, never offered to a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synapse_ane import interpreted
from synapse_ane.core_ml_runtime import Arrays, LoadedProgram, Placement


class InterpretedProgram:
    """One function of a saved package."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def predict(self, inputs: Arrays) -> Arrays:
        """Its outputs by name; raises ``RuntimeError`` for inputs that are not those of the program."""
        wanted = {name: tuple(given.shape) for name, given in self._function.inputs.items()}
        given = {name: array.shape for name, array in inputs.items()}
        if wanted != given:
            raise RuntimeError(f"the program takes {wanted} and was given {given}")
        return interpreted.run(self._function, inputs)


class InterpretedRuntime:
    """Everything is placed on the CPU, and the placement says so."""

    def load(self, package: Path, function: str) -> LoadedProgram:
        functions = interpreted.open_package(package)
        if function not in functions:
            raise RuntimeError(f"{package.name} has {', '.join(sorted(functions))} and no {function!r}")
        return InterpretedProgram(functions[function])

    def placement(self, package: Path, function: str) -> Placement:
        operations = interpreted.open_package(package)[function].operations
        return Placement(0, 0, sum(operation.op_type != "const" for operation in operations))
