"""Numbers and tensor types of a file's header that make llama.cpp end its process, or never come back. Pure.

The engine reads them after it opened the file and holds them against each other by assertions; what it answers with
an error of its own is left to it, a value of another type among that. Source of the rules: llama.cpp's reading of
hyperparameters and the operators its graphs of the served architectures are made of, in the release the plugin wants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from synapse_host.model_files.gguf_cursor import GgufFault
from synapse_host.model_files.gguf_header import ArrayOf, GgufTensor
from synapse_host.model_files.gguf_model import GgufModel
from synapse_llama_worker.architectures import GENERATING

#: Kinds of position scaling the engine knows.
SCALINGS = ("none", "linear", "yarn", "longrope")
#: Most experts the engine has room for.
MAX_EXPERTS = 1024
#: Widest window of attention; past it the engine's sums of 32 bits run over.
MAX_WINDOW = 2**24
#: Architectures whose whole heads are rotated, and nothing less.
_ROTATE_WHOLE_HEADS = frozenset({"llama", "qwen2", "qwen3"})
#: Architectures whose keys and values are of one length.
_ONE_HEAD_LENGTH = _ROTATE_WHOLE_HEADS | {"bert"}


#: Tensor types the format has and no served architecture computes with: integers, doubles, and the two quantisations
#: (Q8_1 and Q8_K) that the engine makes of rows while it multiplies.
_NO_WEIGHTS = frozenset({9, 15, 24, 25, 26, 27, 28})
_F32 = 0


def check_types(tensors: Mapping[str, GgufTensor]) -> None:
    """Raise ``GgufFault`` for a tensor of a type the engine has no operator for: it would read it as another one.

    What is multiplied with or added to a row as it is must be whole; matrices may be of any quantisation.
    """
    for name, tensor in tensors.items():
        vector = len(tensor.dims) <= 1 or name.endswith(("norm.weight", "token_types.weight", ".bias"))
        if tensor.kind in _NO_WEIGHTS or (vector and tensor.kind != _F32):
            wanted = "32-bit floats" if vector else "floats or a quantisation of them"
            raise GgufFault(
                f"tensor {name!r:.80} has type {tensor.kind}, and must have {wanted}; "
                "use the file published with the model"
            )


def check_numbers(values: Mapping[str, Any], model: GgufModel) -> None:
    """Raise ``GgufFault`` for a header the engine would not survive; ``model`` was read from the same ``values``."""
    numbers = _Numbers(values, model.architecture)
    _check_epsilons(numbers)
    _check_scaling(numbers)
    _check_experts(numbers)
    _check_heads(numbers, model)
    _check_window(numbers, model.block_count)
    numbers.at_most("nextn_predict_layers", model.block_count - 1)
    # Outputs are read at this width, whatever the last tensor has.
    numbers.at_most("embedding_length_out", model.embedding_length)


class _Numbers:
    """The numbers below one architecture's prefix."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self._values = values
        self.architecture = architecture

    def value(self, name: str) -> Any:
        """The value of ``name`` as it stands in the header; None where it does not."""
        return self._values.get(f"{self.architecture}.{name}")

    def listed(self, name: str) -> tuple[int | float, ...]:
        """The value of ``name`` as the engine reads it: one number, one a block, or nothing."""
        value = self.value(name)
        if isinstance(value, ArrayOf):
            return value.numbers
        return (value,) if type(value) in (int, float) else ()

    def largest(self, name: str) -> int:
        """The largest integer of ``name``; 0 where there is none."""
        return max((number for number in self.listed(name) if type(number) is int), default=0)

    def at_most(self, name: str, most: int) -> None:
        """Refuse a value of ``name`` above ``most``."""
        if (largest := self.largest(name)) > most:
            self.fault(name, f"{largest}, and may be {most} at most")

    def fault(self, name: str, said: str) -> NoReturn:
        """Refuse the value of ``name``."""
        raise GgufFault(f"{self.architecture}.{name} is {said}; use the file published with the model")


def _check_epsilons(numbers: _Numbers) -> None:
    for name in ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"):
        for epsilon in numbers.listed(name):
            if not (math.isfinite(epsilon) and epsilon >= 0):
                numbers.fault(name, f"{epsilon}, which nothing can be normalised with")


def _check_scaling(numbers: _Numbers) -> None:
    kind = numbers.value("rope.scaling.type")
    if isinstance(kind, str) and kind.split("\0", 1)[0] not in SCALINGS:
        numbers.fault("rope.scaling.type", f"{kind!r:.80}, not one of {', '.join(SCALINGS)}")


def _check_experts(numbers: _Numbers) -> None:
    numbers.at_most("expert_count", MAX_EXPERTS)
    experts = numbers.largest("expert_count")
    numbers.at_most("expert_used_count", experts)
    numbers.at_most("expert_group_count", max(experts - 1, 0))
    if experts and not numbers.largest("expert_used_count"):
        numbers.fault("expert_used_count", f"0 of {experts} experts")
    groups, used = numbers.largest("expert_group_count"), numbers.largest("expert_group_used_count")
    if groups > 1 and (experts % groups or not 0 < used < groups):
        numbers.fault("expert_group_count", f"{groups} of {experts} experts, {used} groups used")


def _check_heads(numbers: _Numbers, model: GgufModel) -> None:
    heads, groups = numbers.listed("attention.head_count"), numbers.listed("attention.head_count_kv")
    for name, counts in (("attention.head_count", heads), ("attention.head_count_kv", groups)):
        if any(not 1 <= count <= model.embedding_length for count in counts):
            numbers.fault(name, f"{list(counts)!r:.80}, and may be 1 to {model.embedding_length}")
    if len(heads) == len(groups) and any(head % group for head, group in zip(heads, groups, strict=True)):
        numbers.fault("attention.head_count", f"{list(heads)!r:.80}, no multiple of {list(groups)!r:.80}")
    if heads:
        _check_head_length(numbers, model.embedding_length // int(heads[0]))


def _check_head_length(numbers: _Numbers, default: int) -> None:
    keys = numbers.largest("attention.key_length") or default
    values = numbers.largest("attention.value_length") or default
    if numbers.architecture in _ONE_HEAD_LENGTH and keys != values:
        numbers.fault("attention.key_length", f"{keys} and the length of values {values}, and must be the same")
    if numbers.architecture not in GENERATING:
        return  # its positions are a table
    whole = numbers.architecture in _ROTATE_WHOLE_HEADS
    for rotated in numbers.listed("rope.dimension_count") or (keys,):
        if rotated % 2 or not 2 <= rotated <= keys or (whole and rotated != keys):
            numbers.fault("rope.dimension_count", f"{rotated}, and heads have {keys} dimensions")


def _check_window(numbers: _Numbers, blocks: int) -> None:
    """A model with a window has a block that looks through one; a pattern of 1 leaves none."""
    numbers.at_most("attention.sliding_window", MAX_WINDOW)
    name = "attention.sliding_window_pattern"
    pattern = numbers.value(name)
    none = not any(pattern.numbers[:blocks]) if isinstance(pattern, ArrayOf) else pattern == 1
    if none and numbers.largest("attention.sliding_window"):
        numbers.fault(name, "such that no block has the window the header states")
