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
        self._library = library
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        # One number a sequence; a token's entry is the address of its sequence's number.
        self._numbers = np.arange(sequences, dtype=np.int32)
        self._addresses = np.zeros(capacity, np.uintp)

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
        return self._batch(start)

    def _batch(self, count: int) -> Any:
        library = self._library
        integers = ctypes.POINTER(ctypes.c_int32)
        return library.llama_batch(
            n_tokens=count,
            token=self._tokens.ctypes.data_as(integers),
            embd=None,
            pos=self._positions.ctypes.data_as(integers),
            n_seq_id=self._ones.ctypes.data_as(integers),
            seq_id=self._addresses.ctypes.data_as(ctypes.POINTER(integers)),
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
