"""A Core ML program run by numpy, every value rounded to the type the program gives it.

It runs what ships: a package is read back from disk, with the weights in its own file, after all of the converter's
passes. A step computes in float32 and rounds once, as an engine does that accumulates wide and stores half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_ane.mil import ct, types
from synapse_host.ops.reference_activations import erf

Array: TypeAlias = npt.NDArray[Any]
Step: TypeAlias = Callable[..., Any]


def open_package(path: Path) -> dict[str, Any]:
    """The functions of a saved package, by name, weights included."""
    from coremltools.converters.mil.frontend.milproto.load import load

    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir)
    return dict(program.functions)


def run(function: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a function of a program, by name.

    Raises:
        NotImplementedError: the program has an operation this interpreter does not know; it names it.

    """
    values: dict[str, Any] = {name: np.asarray(array) for name, array in inputs.items()}
    for operation in function.operations:
        if operation.op_type == "const":
            values[operation.outputs[0].name] = operation.outputs[0].val
            continue
        step = STEPS.get(operation.op_type)
        if step is None:
            raise NotImplementedError(f"operation {operation.op_type!r} of {operation.name!r} has no step here")
        arguments = {name: _value(values, given) for name, given in operation.inputs.items()}
        results = step(**{name: given for name, given in arguments.items() if given is not None})
        for output, result in zip(operation.outputs, results if isinstance(results, list) else [results], strict=True):
            values[output.name] = _rounded(result, output)
    return {output.name: values[output.name] for output in function.outputs}


def _value(values: Mapping[str, Any], given: Any) -> Any:
    if isinstance(given, tuple | list):
        return [_value(values, each) for each in given]
    if given is None:
        return None
    found = values.get(given.name, given.val)
    # Half precision is widened before it is computed with, and narrowed after.
    return (
        found.astype(np.float32) if isinstance(found, np.ndarray | np.generic) and found.dtype == np.float16 else found
    )


def _rounded(result: Array, output: Any) -> Array:
    kind = types.nptype_from_builtin(output.dtype)
    with np.errstate(over="ignore"):
        array = np.asarray(result).astype(kind)
    if tuple(array.shape) != tuple(output.shape):
        raise ValueError(f"{output.name} came out as {array.shape} and the program says {tuple(output.shape)}")
    return array


def _conv(x: Array, weight: Array, bias: Array | None = None, groups: int = 1, **_: Any) -> Array:
    kernel = weight[:, :, 0, 0]
    if groups != 1 or weight.shape[2:] != (1, 1):
        raise NotImplementedError(f"a convolution of {weight.shape} in {groups} groups has no step here")
    found: Array = np.einsum("oc,bchs->bohs", kernel, x, optimize=True)
    return found if bias is None else found + bias[None, :, None, None]


def _matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    left = np.swapaxes(x, -1, -2) if transpose_x else x
    found: Array = left @ (np.swapaxes(y, -1, -2) if transpose_y else y)
    return found


def _softmax(x: Array, axis: int) -> Array:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    shares: Array = shifted / shifted.sum(axis=axis, keepdims=True)
    return shares


def _gather(x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, **_: Any) -> Array:
    if batch_dims:
        raise NotImplementedError(f"a gather over {batch_dims} axes of a batch has no step here")
    found: Array = np.take(x, indices, axis=int(axis))
    return found


def _gelu(x: Array, mode: str) -> Array:
    wide = x.astype(np.float64)
    if mode == "EXACT":
        below: Array = erf(wide / math.sqrt(2.0))
    else:
        below = np.tanh(math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3))
    return wide * (0.5 + 0.5 * below)


def _slice_by_index(x: Array, begin: Array, end: Array, stride: Array | None = None, **masks: Any) -> Array:
    if stride is not None and any(step != 1 for step in stride):
        raise NotImplementedError("a slice with strides has no step here")
    ends = _masked(masks.get("end_mask"), end, x.shape)
    begins = _masked(masks.get("begin_mask"), begin, [0] * x.ndim)
    return x[tuple(slice(first, stop) for first, stop in zip(begins, ends, strict=True))]


def _masked(mask: Array | None, given: Array, otherwise: Any) -> list[int]:
    kept = [False] * len(given) if mask is None else list(mask)
    return [int(other if whole else value) for whole, value, other in zip(kept, given, otherwise, strict=True)]


def _split(x: Array, axis: int, num_splits: int | None = None, split_sizes: Array | None = None) -> list[Array]:
    if split_sizes is None:
        return list(np.split(x, int(num_splits or 1), axis=axis))
    return list(np.split(x, np.cumsum(split_sizes)[:-1], axis=axis))


def _over(reduce: Callable[..., Array]) -> Step:
    return lambda x, axes, keep_dims=False: reduce(x, axis=tuple(int(axis) for axis in axes), keepdims=bool(keep_dims))


STEPS: Mapping[str, Step] = {
    "abs": lambda x: np.abs(x),
    "add": lambda x, y: np.add(x, y),
    "cast": lambda x, dtype: x,
    "concat": lambda values, axis, interleave=False: np.concatenate(values, axis=int(axis)),
    "conv": _conv,
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(int(axis) for axis in axes)),
    "gather": _gather,
    "gelu": _gelu,
    "greater_equal": lambda x, y: np.greater_equal(x, y),
    "identity": lambda x: x,
    "matmul": _matmul,
    "maximum": lambda x, y: np.maximum(x, y),
    "mul": lambda x, y: np.multiply(x, y),
    "real_div": lambda x, y: np.divide(x, y),
    "reduce_max": _over(np.max),
    "reduce_mean": _over(np.mean),
    "reduce_sum": _over(np.sum),
    "reduce_sum_square": _over(lambda x, axis, keepdims: np.sum(np.square(x), axis=axis, keepdims=keepdims)),
    "relu": lambda x: np.maximum(x, 0),
    "reshape": lambda x, shape: np.reshape(x, tuple(int(size) for size in shape)),
    "rsqrt": lambda x, epsilon=0.0: 1.0 / np.sqrt(x + epsilon),
    "select": lambda cond, a, b: np.where(cond, a, b),
    "silu": lambda x: x * (0.5 + 0.5 * np.tanh(0.5 * x)),
    "slice_by_index": _slice_by_index,
    "softmax": _softmax,
    "split": _split,
    "sqrt": lambda x: np.sqrt(x),
    "squeeze": lambda x, axes: np.squeeze(x, axis=tuple(int(axis) for axis in axes)),
    "sub": lambda x, y: np.subtract(x, y),
    "tanh": lambda x: np.tanh(x),
    "transpose": lambda x, perm: np.transpose(x, tuple(int(axis) for axis in perm)),
}
