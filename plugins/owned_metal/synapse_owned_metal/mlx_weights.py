"""The tensors of a checkpoint as arrays on the device, in the activation type of the lane.

All are taken at load and the memory they were read into is given back: Metal's memory is the machine's own, and two
copies of a model may be one too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.hookspecs import DType
from synapse_host.ops.weight_source import check_weight_shape
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_owned_metal.mlx_types import MX_DTYPES
from synapse_owned_metal.runtime import mx

#: Stored types that are numbers; what a checkpoint holds beside them (position ids) no family reads.
_FLOATING = ("F32", "F16", "BF16", "F64")


class MlxWeights:
    """Arrays by tensor name. ``bytes`` is what they take on the device."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays
        self.bytes: int = sum(array.nbytes for array in arrays.values())

    @classmethod
    def taken_from(cls, weights: CheckpointWeights, dtype: DType) -> MlxWeights:
        """Every tensor of ``weights``, which is closed afterwards; ``ValueError`` for numbers the type cannot hold."""
        arrays: dict[str, Any] = {}
        for name in list(weights):
            entry = weights.entry(name)
            if entry.dtype in _FLOATING:
                arrays[name] = _array(entry, name, dtype)
                # One by one: an array that is not computed yet keeps what it is made of.
                mx.eval(arrays[name])
        weights.close()
        return cls(arrays)

    def shaped(self, name: str, shape: Sequence[int]) -> Any:
        """The array, held against the shape the config implies.

        Raises:
            ValueError: the checkpoint has no such tensor, or one of another shape; the message names both shapes.

        """
        found = self._arrays.get(name)
        if found is None:
            raise ValueError(f"the checkpoint has no tensor {name!r} of shape {tuple(shape)}; it is another model's")
        check_weight_shape(name, shape, found.shape)
        return found

    def close(self) -> None:
        """Forget every array; the device's memory is free once no graph holds them."""
        self._arrays.clear()


def _array(entry: StoredTensor, name: str, dtype: DType) -> Any:
    raw = entry.to_float32() if entry.dtype == "F64" else entry.raw()
    held = mx.array(raw)
    held = held.view(mx.bfloat16) if entry.dtype == "BF16" else held
    stored = held.astype(MX_DTYPES[dtype])
    if dtype == "f16" and (mx.isinf(stored) & ~mx.isinf(held)).any().item():
        raise ValueError(f"tensor {name!r} holds numbers that f16 has no room for; load it as f32")
    return stored
