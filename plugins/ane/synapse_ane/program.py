"""From a segment of a model to a Core ML program, and from programs of several shapes to one package.

Programs of one model share their weights: a package of several functions stores each constant once.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synapse_ane.mil import TARGET, Function, Program, Var, ct, mb, types
from synapse_ane.program_inputs import HIDDEN, LAST, SHARE, VISIBLE, Gathered, InputPlan, RowCounts
from synapse_ane.program_ops import ProgramOps
from synapse_host.ops.null_handle import NullHandle
from synapse_host.ops.null_ops import NullOps
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.weight_source import WeightSource
from synapse_host.owned_engine.executables import Build

OUTPUT = "output"
#: What a look-up may be by: token ids, or which text of a pair a token belongs to.
IDS, KINDS = "ids", "kinds"
MAIN = "main"
#: The converter's passes that change anything in a program recorded here. The others look for what other front ends
#: write, and take half of the time of a conversion; one of them, fuse_elementwise_to_batchnorm, makes a norm of half
#: precision with a mean of float32 and fails. Left out too, though it would change something, is the guard against
#: negative indices of look-ups: ids are refused below 0 before they come here, and it takes the processor three steps.
PASSES = frozenset(
    {
        "common::cast_optimization",
        "common::const_deduplication",
        "common::const_elimination",
        "common::dead_code_elimination",
        "common::merge_consecutive_reshapes",
        "common::noop_elimination",
        "common::remove_redundant_ops",
        "common::topological_reorder",
        "nn_backend::handle_unused_inputs",
    }
)


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """What of a segment the program's signature depends on: positions, features, and where it starts."""

    length: int
    width: int
    has_stem: bool
    kinds: bool = False


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program and the look-ups its caller must do."""

    program: Any
    gathered: tuple[Gathered, ...]


def record(build: Build, weights: WeightSource, shape: SegmentShape, *, max_tokens: int) -> RecordedProgram:
    """Record a segment over one row of ``shape.length`` positions.

    Raises:
        ValueError: a tensor is missing, of another shape, or not within half precision.

    """
    gathered = look_ups(build, shape)
    row = (1, 1, 1, shape.length)
    wide = (1, shape.width, 1, shape.length)
    signature = dict.fromkeys((VISIBLE, SHARE, LAST), row) | {each.name: wide for each in gathered}
    if not shape.has_stem:
        signature[HIDDEN] = wide
    program = Program()
    placeholders = {name: mb.placeholder(size, dtype=types.fp16) for name, size in signature.items()}
    with Function(placeholders, opset_version=TARGET) as function:
        ops = ProgramOps(weights, shape.length, max_tokens=max_tokens)
        ops.plan.gathered.extend(gathered)
        ops.inputs.update(function.inputs)
        found = build(ops, _batch(function.inputs, kinds=shape.kinds), function.inputs.get(HIDDEN))
        function.set_outputs([mb.identity(x=found, name=OUTPUT)])
        program.add_function(MAIN, function)
    return RecordedProgram(program, gathered)


def convert(recorded: RecordedProgram, name: str = MAIN) -> Any:
    """The program as Core ML will get it, its function called ``name``: every type kept as it was recorded."""
    program = recorded.program
    (function,) = program.functions.values()
    program.functions = {name: function}
    program.default_function_name = name
    program.export_as_multifunction = name != MAIN
    with _silence():
        return ct.convert(
            recorded.program,
            convert_to="mlprogram",
            minimum_deployment_target=TARGET,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
            pass_pipeline=_passes(),
        )


def _passes() -> Any:
    passes = ct.PassPipeline()
    passes.remove_passes({name for name in passes.passes if name not in PASSES})
    return passes


def save_package(programs: Mapping[str, RecordedProgram], path: Path, *, onto: Path | None = None) -> None:
    """Write one .mlpackage whose functions are ``programs`` by name, and those of the package ``onto`` besides.

    Raises:
        ValueError: there is no program.

    """
    if not programs:
        raise ValueError(f"{path.name} would hold no program; give it at least one shape")
    with building_folder(path.parent) as building, _silence():
        whole = str(building / path.name)
        if onto is None and len(programs) == 1:
            ((name, recorded),) = programs.items()
            convert(recorded, name).save(whole)
            Path(whole).rename(path)
            return
        descriptor = ct.utils.MultiFunctionDescriptor()
        for name, recorded in programs.items():
            single = str(building / f"{name}.mlpackage")
            convert(recorded).save(single)
            descriptor.add_function(single, src_function_name=MAIN, target_function_name=name)
        for name in functions_of(onto) if onto else ():
            descriptor.add_function(str(onto), src_function_name=name, target_function_name=name)
        descriptor.default_function_name = next(iter(programs))
        ct.utils.save_multifunction(descriptor, whole)
        Path(whole).rename(path)


def functions_of(path: Path) -> list[str]:
    """Names of the functions of a package on disk."""
    spec = ct.utils.load_spec(str(path))
    return sorted(spec.mlProgram.functions)


def function_name(length: int) -> str:
    """The function of a package that takes rows of ``length`` positions."""
    return f"tokens_{length}"


def _batch(inputs: Mapping[str, Var], *, kinds: bool) -> Batch:
    counts = RowCounts(inputs[VISIBLE], inputs[SHARE], inputs[LAST])
    return Batch(IDS, counts, kinds=KINDS if kinds else None)


class _LookUps(NullOps):
    """Runs a segment on shapes alone and notes what it looks up: a signature is fixed before a recording begins."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = InputPlan()
        self.tokens = self.handle("B", "S")
        self.kinds = self.handle("B", "S")
        self._names: dict[int, str] = {}

    def weight(self, name: str, shape: Sequence[int]) -> NullHandle:
        held = super().weight(name, shape)
        self._names[id(held)] = name
        return held

    def embedding(self, ids: NullHandle, table: NullHandle) -> NullHandle:
        self.plan.gather(self._names[id(table)], KINDS if ids is self.kinds else IDS)
        return super().embedding(ids, table)


def look_ups(build: Build, shape: SegmentShape) -> tuple[Gathered, ...]:
    """What a segment wants its caller to look up; nothing for one that takes hidden rows."""
    if not shape.has_stem:
        return ()
    ops = _LookUps()
    kinds = ops.kinds if shape.kinds else None
    build(ops, Batch(ops.tokens, ops.handle("B"), kinds=kinds), None)
    return tuple(ops.plan.gathered)


@contextlib.contextmanager
def building_folder(below: Path | None = None) -> Iterator[Path]:
    """A folder, gone at the end, that the converter writes to meanwhile.

    It keeps a package of every program it made, weights included, until the process ends, and for good where that is
    killed.
    """
    with tempfile.TemporaryDirectory(dir=below, prefix=".building-") as building:
        usual, tempfile.tempdir = tempfile.tempdir, building
        try:
            yield Path(building)
        finally:
            tempfile.tempdir = usual


@contextlib.contextmanager
def _silence() -> Any:
    """The converter draws progress bars on standard error, which belongs to the worker's log."""
    logger = logging.getLogger("coremltools")
    level, logger.level = logger.level, logging.ERROR
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.level = level
