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

from synapse_ane.program import RecordedProgram, function_name, functions_of, save_package


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
    """The packages below one folder. One worker at a time uses it: the Neural Engine has one per user."""

    def __init__(self, root: Path) -> None:
        self._root = root
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


def _replace(new: Path, old: Path) -> None:
    """Put ``new`` where ``old`` is; a folder cannot be renamed over another."""
    retired = old.with_suffix(".retired")
    shutil.rmtree(retired, ignore_errors=True)
    if old.exists():
        old.rename(retired)
    new.rename(old)
    shutil.rmtree(retired, ignore_errors=True)
