"""Small recorded expressions over OpenVINO's operation set: constants, lengths, cuts.

OpenVINO's functions return a node or one of its outputs; everything here takes and returns outputs only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from synapse_owned_cpu.runtime import opset, ov

#: One output of a node.
Out: TypeAlias = Any


def out(node: Any) -> Out:
    """The single output of a node; an output is returned as it is."""
    return node if isinstance(node, ov.Output) else node.output(0)


def integer(value: int) -> Out:
    """A scalar i32."""
    return out(opset.constant(np.array(value, dtype=np.int32)))


def integers(*values: int) -> Out:
    """A vector of i32."""
    return out(opset.constant(np.array(values, dtype=np.int32)))


def real(value: float) -> Out:
    """A scalar f32."""
    return out(opset.constant(np.array(value, dtype=np.float32)))


def floats(x: Out) -> Out:
    """``x`` as f32; a weight stays in its own type up to here."""
    return x if x.get_element_type() == ov.Type.f32 else out(opset.convert(x, "f32"))


def static(x: Out, axis: int) -> int:
    """The length of an axis that is known while recording."""
    return int(x.get_partial_shape()[axis].get_length())


def features(x: Out) -> int:
    """The length of the last axis."""
    return static(x, x.get_partial_shape().rank.get_length() - 1)


def length(x: Out, axis: int) -> Out:
    """The length of an axis as i32[1], known only when the graph runs."""
    return out(opset.gather(opset.shape_of(x, "i32"), integers(axis), integer(0)))


def plus(x: Out, value: int | Out) -> Out:
    """``x + value`` on i32, where ``value`` is a number or an i32[1]; ``x`` itself for 0."""
    if not isinstance(value, int):
        return out(opset.add(x, value))
    return x if value == 0 else out(opset.add(x, integer(value)))


def cut(x: Out, begin: int | Out, end: Out, axis: int = 0) -> Out:
    """Positions ``begin`` (a number or an i32[1]) up to ``end`` (i32[1]) of one axis."""
    first = integers(begin) if isinstance(begin, int) else begin
    return out(opset.slice(x, first, end, integers(1), integers(axis)))


def count_up(end: Out) -> Out:
    """0, 1, … below ``end`` (i32[1]) as i32."""
    return out(opset.range(integer(0), opset.squeeze(end, integers(0)), integer(1), "i32"))


def spread(x: Out, *axes: int) -> Out:
    """``x`` with axes of length 1 put at ``axes`` of the result."""
    return out(opset.unsqueeze(x, integers(*axes)))
