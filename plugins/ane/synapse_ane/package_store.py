"""Packages on disk: one for each segment of a model, with a function for each shape that was asked for so far.

A package is known by all that its programs depend on, so that another model, or another release of this plugin, never
meets one that is not its own. It appears whole under its name or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from synapse_ane.core_ml_runtime import COMPILED_SUFFIX
from synapse_ane.program import RecordedProgram, function_name, functions_of, save_package

#: Compiles the package of the first path into the second.
CompilePackage: TypeAlias = Callable[[Path, Path], None]


@dataclass(frozen=True, slots=True)
class PackageKey:
    """What the programs of one package have in common. ``segment`` is (first, stop) of the model's blocks."""

    artifact_digest: str
    config_digest: str
    family: str
    task: str
    segment: tuple[int, int]
    max_tokens: int
    kernel_revision: str

    @property
    def name(self) -> str:
        """The package's folder name."""
        content = json.dumps([*self._fields()], separators=(",", ":"))
        return f"{hashlib.sha256(content.encode()).hexdigest()}.mlpackage"

    def _fields(self) -> tuple[object, ...]:
        return (
            self.artifact_digest, self.config_digest, self.family, self.task, self.segment, self.max_tokens,
            self.kernel_revision,
        )  # fmt: skip


class PackageStore:
    """The packages below one folder, and what Core ML compiled of them. One worker at a time uses it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tidied: set[str] = set()
        root.mkdir(parents=True, exist_ok=True)

    def with_length(self, key: PackageKey, length: int, record: Callable[[], RecordedProgram]) -> Path:
        """The package of ``key``, holding the program of ``length`` positions; recorded where it was not there."""
        path = self._root / key.name
        name = function_name(length)
        if path.exists() and name in functions_of(path):
            return path
        grown = path.with_suffix(".growing.mlpackage")
        shutil.rmtree(grown, ignore_errors=True)
        save_package({name: record()}, grown, onto=path if path.exists() else None)
        _replace(grown, path)
        return path

    def compiled(
        self, key: PackageKey, length: int, record: Callable[[], RecordedProgram], compile_package: CompilePackage
    ) -> Path:
        """The compiled form of the package ``with_length`` gives; made where it was not there.

        A package only grows, so the number of its functions tells one version from the other. What was compiled of a
        smaller one stays for the programs that are open, and goes when the next worker meets the package.
        """
        package = self.with_length(key, length, record)
        path = package.with_suffix(f".{len(functions_of(package))}{COMPILED_SUFFIX}")
        self._tidy(package, path)
        if not path.exists():
            growing = path.with_suffix(f".growing{COMPILED_SUFFIX}")
            shutil.rmtree(growing, ignore_errors=True)
            compile_package(package, growing)
            growing.rename(path)
        return path

    def _tidy(self, package: Path, kept: Path) -> None:
        if package.name in self._tidied:
            return
        self._tidied.add(package.name)
        for found in self._root.glob(f"{package.stem}.*{COMPILED_SUFFIX}"):
            if found != kept:
                shutil.rmtree(found, ignore_errors=True)


def _replace(new: Path, old: Path) -> None:
    """Put ``new`` where ``old`` is; a folder cannot be renamed over another."""
    retired = old.with_suffix(".retired")
    shutil.rmtree(retired, ignore_errors=True)
    if old.exists():
        old.rename(retired)
    new.rename(old)
    shutil.rmtree(retired, ignore_errors=True)
