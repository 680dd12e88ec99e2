"""Holds a call against the engine's limits. Pure.

llama.cpp answers each of these with the end of its process, or with wrong numbers and no word: a batch above its
batch sizes, a position past the table, an id past the vocabulary, a sequence number past the most it keeps. So no call
is made that did not pass here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synapse_host.hookspecs import PluginError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one context takes.

    ``batch`` tokens in one call, ``sequences`` of them at once, ``positions`` tokens in one sequence, and ids below
    ``vocabulary``.
    """

    batch: int
    sequences: int
    positions: int
    vocabulary: int


def check_call(limits: Limits, first_position: int, counts: Sequence[int]) -> None:
    """Raise ``RuntimeError`` for a call the engine would not survive: a fault of this plugin, not of a request."""
    total = sum(counts)
    if not 1 <= total <= limits.batch:
        raise RuntimeError(f"a call of {total} tokens, and the engine takes 1 to {limits.batch}")
    if not 1 <= len(counts) <= limits.sequences:
        raise RuntimeError(f"a call of {len(counts)} sequences, and the engine takes 1 to {limits.sequences}")
    if first_position < 0 or first_position + max(counts) > limits.positions:
        raise RuntimeError(f"positions up to {first_position + max(counts)}, and the engine has {limits.positions}")


def check_step(limits: Limits, token: int, position: int) -> None:
    """Raise ``RuntimeError`` for a call of one token the engine would not survive."""
    if not 0 <= token < limits.vocabulary:
        raise RuntimeError(f"token {token} is outside the vocabulary of {limits.vocabulary}")
    if not 0 <= position < limits.positions:
        raise RuntimeError(f"position {position}, and the engine has 0 to {limits.positions - 1}")


def check_ids(limits: Limits, ids: Int32, where: str) -> None:
    """Refuse ids outside the vocabulary, with ``invalid_request``; ``where`` begins the message."""
    outside = (ids < 0) | (ids >= limits.vocabulary)
    if outside.any():
        token_id = int(ids[int(outside.argmax())])
        raise PluginError(
            "invalid_request",
            f"{where} token id {token_id} is outside the vocabulary of {limits.vocabulary}; "
            "use the tokenizer published with the model",
        )


def check_rows(limits: Limits, rows: Sequence[Int32], names: Sequence[str], most: int) -> None:
    """Refuse a row that is empty, longer than ``most`` or has an id outside the vocabulary; the message names it."""
    for name, row in zip(names, rows, strict=True):
        # The form the host reads an item's id from (reference page of the worker protocol, ERR).
        item = f"item {json.dumps(name)}:"
        if not 1 <= len(row) <= most:
            problem = f"{len(row)} tokens, and this model was loaded for 1 to {most}; shorten the text"
            raise PluginError("invalid_request", f"{item} {problem}")
        check_ids(limits, row, item)
