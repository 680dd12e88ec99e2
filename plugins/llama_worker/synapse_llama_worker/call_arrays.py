"""The arrays of one call, owned by numpy and filled in whole columns; llama.cpp only ever reads them.

llama-cpp-python's own batches are filled element by element, which costs more than a small model's computing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


class CallArrays:
    """Room for ``capacity`` tokens of at most ``sequences`` sequences."""

    def __init__(self, library: Any, capacity: int, sequences: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        # One number a sequence; a token's entry is the address of its sequence's number.
        self._numbers = np.arange(sequences, dtype=np.int32)
        self._addresses = np.full(capacity, self._numbers.ctypes.data, np.uintp)
        self._batch = self._struct(library)

    def fill(self, rows: Sequence[Int32], first_position: int, *, every_output: bool) -> Any:
        """The batch of ``rows``, each a sequence of its own from ``first_position`` on.

        ``every_output`` asks for an output of every token, as pooling needs; otherwise of the last one of each row.
        The batch is valid until the next call of ``fill``.
        """
        start = 0
        for number, row in enumerate(rows):
            end = start + len(row)
            self._tokens[start:end] = row
            self._positions[start:end] = np.arange(first_position, first_position + len(row), dtype=np.int32)
            self._addresses[start:end] = self._numbers.ctypes.data + number * self._numbers.itemsize
            self._outputs[start:end] = every_output
            self._outputs[end - 1] = 1
            start = end
        self._batch.n_tokens = start
        return self._batch

    def fill_one(self, token: int, position: int) -> Any:
        """The batch of one token of the first sequence, with its output; as valid as one of ``fill``.

        Decoding takes this step between any two reads of all the weights, when nothing it touches is in a cache.
        """
        self._tokens[0] = token
        self._positions[0] = position
        # The first token of every batch is of the first sequence: its address stands there already.
        self._outputs[0] = 1
        self._batch.n_tokens = 1
        return self._batch

    def _struct(self, library: Any) -> Any:
        integers = ctypes.POINTER(ctypes.c_int32)
        return library.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(integers),
            embd=None,
            pos=self._positions.ctypes.data_as(integers),
            n_seq_id=self._ones.ctypes.data_as(integers),
            seq_id=self._addresses.ctypes.data_as(ctypes.POINTER(integers)),
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
