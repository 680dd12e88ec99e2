"""Where Core ML is expected to place an operation, by what is known of the Neural Engine. An estimate, not a plan.

Core ML decides when it loads a program, on the Mac it loads it on, and ``CoreMLTools.placement`` asks it. These rules
stand in where there is no Mac: for the census of a program, and for the placement the interpreter tells.

Sources: Apple's guide to transformers on the Neural Engine (half precision alone, channels first, four axes) and what
developers found it to refuse (gathers and integers, sizes past 16,384 along an axis, more than five axes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from synapse_ane.core_ml_runtime import Placement
from synapse_ane.mil import types

#: Positions along one axis that the engine takes.
LONGEST_AXIS = 16_384
#: Axes of a tensor that the engine takes.
MOST_AXES = 5
#: Operations without a form on the engine, whatever their types.
NEVER = frozenset({"gather", "gather_along_axis", "gather_nd", "range_1d", "shape", "cumsum", "non_zero", "where"})
#: Not dispatched: what a compiler stores, or does by naming a value anew.
UNDISPATCHED = frozenset({"const", "identity"})


def why_not(operation: Any) -> str | None:
    """Why the engine is not expected to take ``operation`` of a program; None where it is."""
    if operation.op_type in NEVER:
        return f"no form of {operation.op_type}"
    for value in (*_tensors(operation), *operation.outputs):
        # A scalar such as an epsilon or an axis is an argument, not a tensor that is computed with.
        if value.dtype in (types.fp32, types.int32):
            return f"{types.builtin_to_string(value.dtype)} tensors"
        if len(value.shape) > MOST_AXES:
            return f"{len(value.shape)} axes"
        if any(isinstance(size, int) and size > LONGEST_AXIS for size in value.shape):
            return f"an axis of {max(value.shape)}"
    return None


def dispatched(function: Any) -> list[Any]:
    """The operations of a function of a program that are computed at all."""
    return [operation for operation in function.operations if operation.op_type not in UNDISPATCHED]


def estimate(function: Any) -> Placement:
    """The expected placement of a function: what the engine does not take is on the processor."""
    operations = dispatched(function)
    refused = [operation.op_type for operation in operations if why_not(operation) is not None]
    return Placement(len(operations) - len(refused), 0, len(refused), frozenset(refused))


def _tensors(operation: Any) -> Iterator[Any]:
    """What an operation computes with: its inputs but the constants among them, which are its arguments."""
    for given in operation.inputs.values():
        for value in given if isinstance(given, tuple | list) else (given,):
            if value is not None and (value.op is None or value.op.op_type != "const"):
                yield value
