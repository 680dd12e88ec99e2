"""Segments of a model as functions of Core ML packages, for the shared owned engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_ane.core_ml_runtime import CoreMLRuntime, LoadedProgram, only_output
from synapse_ane.package_store import PackageKey, PackageStore
from synapse_ane.program import IDS, OUTPUT, SegmentShape, function_name, look_ups, record
from synapse_ane.program_inputs import HIDDEN, Gathered, count_inputs, looked_up
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey
from synapse_host.owned_engine.weights import CheckpointWeights

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a package is known by, beside the segment: digests of the weights, config.json and the code."""

    artifact_digest: str
    config_digest: str
    kernel_revision: str


class ProgramSegment:
    """One function of one package: a segment over one row of a fixed length."""

    def __init__(self, program: LoadedProgram, gathered: tuple[Gathered, ...], tables: Mapping[str, Any]) -> None:
        self._program = program
        self._gathered = gathered
        self._tables = tables

    def __call__(
        self, ids: Int32, counts: Int32, hidden: npt.NDArray[Any] | None = None, kinds: Int32 | None = None
    ) -> npt.NDArray[Any]:
        inputs = count_inputs(int(counts[0]), ids.shape[1])
        for each in self._gathered:
            row = ids[0] if each.ids == IDS or kinds is None else kinds[0]
            inputs[each.name] = looked_up(self._tables[each.table], row)
        if hidden is not None:
            inputs[HIDDEN] = hidden
        return only_output(self._program.predict(inputs), OUTPUT)


@dataclass
class ProgramBackend:
    """The programs of one model; each (segment, length) is made when it is first asked for."""

    weights: CheckpointWeights
    identity: ModelIdentity
    max_tokens: int
    store: PackageStore
    runtime: CoreMLRuntime
    static_shapes: bool = True
    _tables: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        """Record, convert and compile the segment for its length; a package made before is opened instead."""
        assert key.shape is not None
        rows, length = key.shape
        if rows != 1:
            raise ValueError(f"a program takes one row and was asked for {rows}")
        shape = SegmentShape(length, key.width, key.segment.has_stem, key.kinds)
        gathered = look_ups(build, shape)
        package = self.store.with_length(
            self._package(key), length, lambda: record(build, self.weights, shape, max_tokens=self.max_tokens)
        )
        for each in gathered:
            if each.table not in self._tables:
                self._tables[each.table] = self.weights.tensor(each.table)
        return ProgramSegment(self.runtime.load(package, function_name(length)), gathered, self._tables)

    def between_segments(self) -> None:
        """Nothing: buffers are Core ML's."""

    def close(self) -> None:
        self._tables.clear()
        self.weights.close()

    def _package(self, key: ExecutableKey) -> PackageKey:
        return PackageKey(
            self.identity.artifact_digest,
            self.identity.config_digest,
            key.family,
            key.task,
            (key.segment.first, key.segment.stop),
            self.max_tokens,
            self.identity.kernel_revision,
        )
