"""Where operations get a checkpoint's tensors from, and the check each of them passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class WeightSource(Protocol):
    """A checkpoint opened for reading; names are the published ones with any model prefix already taken off."""

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name`` as float32; raises ``KeyError`` when the checkpoint has none of that name."""


def checked_tensor(source: WeightSource, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """The tensor ``name``, of exactly ``shape``; raises ``ValueError`` naming it and both shapes otherwise."""
    try:
        tensor = source.tensor(name)
    except KeyError as missing:
        raise ValueError(f"the checkpoint has no tensor {name!r} (shape {tuple(shape)} is needed)") from missing
    check_weight_shape(name, shape, tensor.shape)
    return tensor


def check_weight_shape(name: str, wanted: Sequence[int], found: Sequence[int]) -> None:
    """Raise ``ValueError`` naming the tensor and both shapes unless they are equal."""
    if tuple(found) != tuple(wanted):
        raise ValueError(
            f"tensor {name!r} has shape {tuple(found)} where config.json asks for {tuple(wanted)}: "
            "the checkpoint and config.json are not of the same model"
        )
