"""Segments of a model as functions of Core ML packages, for the shared owned engine.

A segment is an executable of the engine as long as the model is loaded; its program is open only while its length is
resident, so that a length can be given up and taken again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_ane.core_ml_runtime import (
    CoreMLRuntime,
    LoadedProgram,
    Placement,
    least_share,
    only_output,
    together,
)
from synapse_ane.package_store import PackageKey, PackageStore
from synapse_ane.program import IDS, OUTPUT, SegmentShape, function_name, look_ups, record
from synapse_ane.program_inputs import HIDDEN, Gathered, count_inputs, looked_up
from synapse_ane.shape_table import ShapeTable
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey
from synapse_host.owned_engine.weights import CheckpointWeights

Int32 = npt.NDArray[np.int32]
#: What is left to the processor beside the programs: look-ups in the table of tokens, and the masks of a row's count.
HOST_STAGES = ("masks", "token_embedding")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a package is known by, beside the segment: digests of the weights, config.json and the code."""

    artifact_digest: str
    config_digest: str
    kernel_revision: str


@dataclass(frozen=True, slots=True)
class OpenProgram:
    """A program on the engine, the look-ups its caller must do, and where its operations are."""

    program: LoadedProgram
    gathered: tuple[Gathered, ...]
    placement: Placement


@dataclass
class ProgramBackend:
    """The programs of one model; each (segment, length) is made when its length is admitted or first used."""

    weights: CheckpointWeights
    identity: ModelIdentity
    max_tokens: int
    store: PackageStore
    runtime: CoreMLRuntime
    shapes: ShapeTable
    #: Nothing is compiled yet: a segment that runs is recorded only, to show that its tensors are there and fit.
    recording: bool = False
    static_shapes: bool = True
    _open: dict[ExecutableKey, OpenProgram] = field(default_factory=dict)
    #: Of every program that was ever opened here: eviction does not make a placement unknown.
    _placed: dict[int, dict[ExecutableKey, Placement]] = field(default_factory=dict)
    _tables: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        """The segment of ``key``; its program is made when it runs."""
        assert key.shape is not None
        if key.shape[0] != 1:
            raise ValueError(f"a program takes one row and was asked for {key.shape[0]}")
        return ProgramSegment(self, key, build)

    def opened(self, key: ExecutableKey, build: Build) -> OpenProgram:
        """The program of a segment, recorded, converted and compiled where that was not done yet.

        Raises:
            PluginError: shape_not_admitted, where the host admits shapes and has not admitted this one.
            ValueError: a tensor is missing, of another shape, or not within half precision.
            RuntimeError: Core ML refuses the program.

        """
        length = _length(key)
        dropped = self.shapes.use(length)
        if dropped is not None:
            self.drop(dropped)
        if key not in self._open:
            self._open[key] = self._made(key, build)
            self._placed.setdefault(length, {})[key] = self._open[key].placement
        return self._open[key]

    def recorded_only(self, key: ExecutableKey, build: Build) -> npt.NDArray[np.float16]:
        """Record a segment and drop it; zeros in the form of its hidden rows. Raises ``ValueError`` as ``opened``."""
        record(build, self.weights, _shape(key), max_tokens=self.max_tokens)
        return np.zeros((1, key.width, 1, _length(key)), np.float16)

    def table(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor of the checkpoint that rows are looked up in."""
        if name not in self._tables:
            self._tables[name] = self.weights.tensor(name)
        return self._tables[name]

    def drop(self, length: int) -> bool:
        """Close every program of ``length``; False where it was not resident."""
        for key in [key for key in self._open if _length(key) == length]:
            del self._open[key]
        return self.shapes.drop(length)

    def inventory(self) -> dict[str, Any]:
        """What is compiled now: every program with the blocks it holds, and what is computed elsewhere."""
        keys = sorted(self._open, key=lambda key: (_length(key), key.task, key.segment))
        elsewhere = together(each.placement for each in self._open.values()).elsewhere
        return {
            "executables": [
                {
                    "id": f"{function_name(_length(key))}/{key.task}",
                    "layers": [*range(key.segment.first, key.segment.stop)],
                }
                for key in keys
            ],
            "cpu_stages": [*HOST_STAGES, *sorted(elsewhere)],
        }

    def placement_share(self) -> float | None:
        """The least share of operations on the engine of any length that was compiled here.

        None before the first, and where Core ML tells no place of the operations of one.
        """
        return least_share(together(placed.values()) for placed in self._placed.values())

    def between_segments(self) -> None:
        """Nothing: buffers are Core ML's."""

    def close(self) -> None:
        self._open.clear()
        self._tables.clear()
        self.weights.close()

    def _made(self, key: ExecutableKey, build: Build) -> OpenProgram:
        length = _length(key)
        shape = _shape(key)
        compiled = self.store.compiled(
            self._package(key),
            length,
            lambda: record(build, self.weights, shape, max_tokens=self.max_tokens),
            self.runtime.compile,
        )
        name = function_name(length)
        return OpenProgram(
            self.runtime.load(compiled, name), look_ups(build, shape), self.runtime.placement(compiled, name)
        )

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


class ProgramSegment:
    """One function of one package: a segment over one row of a fixed length."""

    def __init__(self, backend: ProgramBackend, key: ExecutableKey, build: Build) -> None:
        self._backend = backend
        self._key = key
        self._build = build

    def __call__(
        self, ids: Int32, counts: Int32, hidden: npt.NDArray[Any] | None = None, kinds: Int32 | None = None
    ) -> npt.NDArray[Any]:
        if self._backend.recording:
            return self._backend.recorded_only(self._key, self._build)
        opened = self._backend.opened(self._key, self._build)
        inputs: dict[str, Any] = dict(count_inputs(int(counts[0]), ids.shape[1]))
        for each in opened.gathered:
            row = ids[0] if each.ids == IDS or kinds is None else kinds[0]
            inputs[each.name] = looked_up(self._backend.table(each.table), row)
        if hidden is not None:
            inputs[HIDDEN] = hidden
        outputs: Mapping[str, Any] = opened.program.predict(inputs)
        return only_output(outputs, OUTPUT)


def _length(key: ExecutableKey) -> int:
    assert key.shape is not None
    return key.shape[1]


def _shape(key: ExecutableKey) -> SegmentShape:
    return SegmentShape(_length(key), key.width, key.segment.has_stem, key.kinds)
