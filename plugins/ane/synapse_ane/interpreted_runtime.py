"""Packages run by the interpreter instead of Core ML: on any platform, for tests and for who develops the plugin.

What it "compiles" is the package itself, in a folder that looks like Core ML's: with the same description of inputs and
outputs. Its placement is the estimate of the rules, since it places nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from synapse_ane import interpreted, placement_rules
from synapse_ane.core_ml_runtime import Arrays, LoadedProgram, Placement
from synapse_ane.mil import types

#: The package inside of a folder this runtime compiled.
_PACKAGE = "interpreted.mlpackage"
#: What Core ML's description calls the types a program takes and gives.
_TYPE_NAMES = {types.fp16: "Float16", types.fp32: "Float32", types.int32: "Int32"}


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
    """What Core ML does, in numpy and in the order the program was written."""

    def __init__(self) -> None:
        #: Functions of packages by folder, which keeps its number when it is renamed, and the time it was made.
        self._read: dict[tuple[int, int], dict[str, Any]] = {}

    def compile(self, package: Path, compiled: Path) -> None:
        if compiled.exists():
            raise RuntimeError(f"{compiled} is there already; remove it")
        shutil.copytree(package, compiled / _PACKAGE)
        functions = self._functions(compiled)
        described = [_schema(function) for function in functions.values()]
        (compiled / "metadata.json").write_text(json.dumps(described), encoding="utf-8")

    def load(self, compiled: Path, function: str | None) -> LoadedProgram:
        return InterpretedProgram(self._function(compiled, function))

    def placement(self, compiled: Path, function: str | None) -> Placement:
        return placement_rules.estimate(self._function(compiled, function))

    def _function(self, compiled: Path, name: str | None) -> Any:
        if not (compiled / _PACKAGE).is_dir():
            raise RuntimeError(f"{compiled.name} was compiled by Core ML, which only a Mac can open")
        functions = self._functions(compiled)
        if name is None and len(functions) == 1:
            return next(iter(functions.values()))
        if name not in functions:
            raise RuntimeError(f"{compiled.name} has {', '.join(sorted(functions))} and no {name!r}")
        return functions[name]

    def _functions(self, compiled: Path) -> dict[str, Any]:
        facts = (compiled / _PACKAGE).stat()
        key = (facts.st_ino, facts.st_mtime_ns)
        if key not in self._read:
            self._read[key] = interpreted.open_package(compiled / _PACKAGE)
        return self._read[key]


def _schema(function: Any) -> dict[str, Any]:
    return {
        "inputSchema": [_described(name, value) for name, value in function.inputs.items()],
        "outputSchema": [_described(value.name, value) for value in function.outputs],
    }


def _described(name: str, value: Any) -> dict[str, str]:
    return {
        "name": name,
        "type": "MultiArray",
        "dataType": _TYPE_NAMES.get(value.dtype, "Unknown"),
        "shape": str([int(size) for size in value.shape]),
    }
