"""Whole models as programs that take nothing but ids and a mask: what a package of a set holds.

The tables of tokens are inside, and what the other programs are given by the worker is made from the mask. The look-ups
and the mask's change to numbers are left to the processor for it: that is the price of a package anybody can load, and
the larger a part of it, the smaller the model. So nothing else is: what comes out is in half precision, as it was
computed, and vectors are scaled to length one by whoever asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from synapse_ane.mil import TARGET, Function, Program, Var, constant, half, mb, types
from synapse_ane.program import MAIN, OUTPUT, RecordedProgram
from synapse_ane.program_inputs import RowCounts
from synapse_ane.program_ops import ProgramOps, StoredWeight
from synapse_host.hookspecs import Pooling, Task
from synapse_host.model_files.compiled_package import IDS, KINDS, MASK
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.weight_source import WeightSource
from synapse_host.owned_engine.family_table import Family, FamilyConfig

#: Up to where half precision tells whole numbers apart.
_EXACT_COUNT = 2048


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A model and what its rows leave it by; ``config`` is the parsed config.json.

    ``kinds`` says that the texts of a pair are told apart, for rerankers of families that can.
    """

    family: Family
    config: Mapping[str, Any]
    task: Task
    pooling: Pooling = "mean"
    kinds: bool = False


class ClosedOps(ProgramOps):
    """The operations with look-ups in the program: ``ids`` of a batch is an input [1, S] of whole numbers from 0 on.

    What leaves it is in half precision.
    """

    def embedding(self, ids: Var, table: StoredWeight) -> Var:
        rows = mb.gather(x=mb.const(val=half(table.values, table.name)), indices=ids, axis=0)
        return mb.expand_dims(x=mb.transpose(x=rows, perm=[0, 2, 1]), axes=[2])

    def _leaving(self, x: Var) -> Var:
        return x


def checked(model: WholeModel, longest: int) -> tuple[FamilyConfig, Callable[..., Any]]:
    """The config and the way out of ``model``, which must hold rows of ``longest`` positions.

    Raises:
        ValueError: it does not, its family does not rerank, or config.json lacks something.

    """
    family = model.family
    config = family.config(model.config, pooling=model.pooling, normalize=False)
    if longest > config.positions:
        raise ValueError(f"rows of {longest} positions pass the {config.positions} of the model; ask for shorter ones")
    head = family.head if model.task == "embed" else family.score
    if head is None:
        raise ValueError(f"a model of family {family.name} does not rerank")
    return config, head


def record_whole(model: WholeModel, weights: WeightSource, length: int) -> RecordedProgram:
    """The program of rows of ``length`` positions, [1, n] out: a vector, or what a score is read from.

    Raises:
        ValueError: as ``checked``, or a tensor is missing, of another shape, or not within half precision.

    """
    family = model.family
    config, head = checked(model, length)
    kinds = model.kinds and model.task == "rerank" and family.segmented
    program = Program()
    names = (IDS, MASK, KINDS) if kinds else (IDS, MASK)
    placeholders = {name: mb.placeholder((1, length), dtype=types.int32) for name in names}
    with Function(placeholders, opset_version=TARGET) as function:
        ops: Any = ClosedOps(weights, length, max_tokens=config.positions)
        given = function.inputs
        batch = Batch(given[IDS], _counts(given[MASK]), kinds=given.get(KINDS))
        x = family.stem(ops, config, batch)
        for i in range(config.layers):
            x = family.block(ops, config, i, x, batch)
        function.set_outputs([mb.identity(x=ops.result(head(ops, config, x, batch)), name=OUTPUT)])
        program.add_function(MAIN, function)
    return RecordedProgram(program, ())


def _counts(mask: Var) -> RowCounts:
    """What a row's mask [1, S] says, in the form of the other programs' inputs; tokens stand before padding."""
    length = mask.shape[1]
    counted = mb.cast(x=mask, dtype="fp16" if length <= _EXACT_COUNT else "fp32")
    wide = mb.reshape(x=counted, shape=[1, 1, 1, length])
    share = mb.real_div(x=wide, y=mb.reduce_sum(x=wide, axes=[3], keep_dims=True))
    visible = mb.cast(x=wide, dtype="fp16")
    after = mb.slice_by_index(x=visible, begin=[0, 0, 0, 1], end=[1, 1, 1, length])
    last = mb.sub(x=visible, y=mb.concat(values=[after, constant([[[[0.0]]]])], axis=3))
    return RowCounts(visible, mb.cast(x=share, dtype="fp16"), last)
