"""One llama.cpp context: made for one kind of call, and never called without a look at its limits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import PluginError
from synapse_llama_worker import limits
from synapse_llama_worker.call_arrays import CallArrays, Int32
from synapse_llama_worker.library import forget_errors, last_errors
from synapse_llama_worker.limits import Limits

Float32 = npt.NDArray[np.float32]

#: llama.h, enum llama_pooling_type; where nothing is pooled the choice is left to the file, which means no warning.
POOLING = {"none": -1, "mean": 1, "cls": 2, "last": 3, "rank": 4}
#: The engine rounds its memory up to a multiple of this many tokens.
_MEMORY_STEP = 256


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """What a context is made for.

    ``memory`` tokens kept at once, ``batch`` in a call, of ``sequences`` sequences with ``positions`` tokens each.
    """

    memory: int
    positions: int
    batch: int
    sequences: int
    pooling: str
    threads: int


class Context:
    """Made from an open model; ``close`` frees it. Not shared between threads."""

    def __init__(self, library: Any, model: Any, plan: ContextPlan, vocabulary: int) -> None:
        self._library = library
        self._pooled = plan.pooling != "none"
        self._handle = _open(library, model, plan)
        self.limits = _limits_of(library, self._handle, plan, vocabulary)
        self._memory = library.llama_get_memory(self._handle)
        self._arrays = CallArrays(library, plan.batch, plan.sequences)
        # The engine answers with one place again and again, until a larger call moves it.
        self._logits_address = 0
        self._logits: Float32 = np.zeros(0, np.float32)

    def forget(self) -> None:
        """Drop what earlier calls left; an encoder keeps nothing."""
        if self._memory:
            self._library.llama_memory_clear(self._memory, True)

    def compute(self, rows: Sequence[Int32], first_position: int = 0) -> None:
        """Run ``rows`` through the model, each as a sequence of its own.

        Raises:
            RuntimeError: the engine would not survive the call, or it failed.
            PluginError: invalid_request for an id outside the vocabulary.

        """
        limits.check_call(self.limits, first_position, [len(row) for row in rows])
        for row in rows:
            limits.check_ids(self.limits, row, "a row has")
        self._decode(self._arrays.fill(rows, first_position, every_output=self._pooled))

    def step(self, token: int, position: int) -> None:
        """Run one more token of the only sequence through the model; raises as ``compute`` does."""
        limits.check_step(self.limits, token, position)
        self._decode(self._arrays.fill_one(token, position))

    def _decode(self, batch: Any) -> None:
        forget_errors()
        status = self._library.llama_decode(self._handle, batch)
        if status:
            raise RuntimeError(
                f"llama_decode of {batch.n_tokens} tokens returned {status}: {last_errors() or 'no word'}"
            )

    def pooled(self, sequence: int, width: int) -> Float32:
        """The pooled output of one sequence of the last call, float32 [width]; a copy."""
        pointer = self._library.llama_get_embeddings_seq(self._handle, sequence)
        if not pointer:
            raise RuntimeError(f"the engine has no output for sequence {sequence} of the last call")
        values: Float32 = np.ctypeslib.as_array(pointer, (width,)).copy()
        return values

    def logits(self) -> Float32:
        """The logits after the last token of the last call, float32 [vocabulary]; valid until the next call."""
        pointer = self._library.llama_get_logits_ith(self._handle, -1)
        if not pointer:
            raise RuntimeError("the engine has no logits for the last token of the last call")
        address = ctypes.addressof(pointer.contents)
        if address != self._logits_address:
            self._logits = np.ctypeslib.as_array(pointer, (self.limits.vocabulary,))
            self._logits_address = address
        return self._logits

    def close(self) -> None:
        """Free the context; it may be called twice."""
        handle, self._handle = self._handle, None
        if handle:
            self._library.llama_free(handle)


def _open(library: Any, model: Any, plan: ContextPlan) -> Any:
    params = library.llama_context_default_params()
    params.n_ctx = plan.memory + -plan.memory % _MEMORY_STEP
    params.n_batch = plan.batch
    params.n_ubatch = plan.batch
    params.n_seq_max = plan.sequences
    params.n_threads = params.n_threads_batch = plan.threads
    params.pooling_type = POOLING[plan.pooling]
    params.embeddings = plan.pooling != "none"
    # Rows of any lengths share the memory; without it each would get an equal part.
    params.kv_unified = True
    params.offload_kqv = params.op_offload = False
    params.no_perf = True
    forget_errors()
    handle = library.llama_init_from_model(model, params)
    if not handle:
        raise PluginError(
            "oom",
            f"llama.cpp made no context of {plan.memory} tokens ({last_errors() or 'it gave no reason'}); "
            "lower max_tokens or free memory",
        )
    return handle


def _limits_of(library: Any, handle: Any, plan: ContextPlan, vocabulary: int) -> Limits:
    """The engine's own numbers, never more than what was asked for."""
    batch = min(plan.batch, library.llama_n_batch(handle), library.llama_n_ubatch(handle))
    return Limits(batch, plan.sequences, min(plan.positions, library.llama_n_ctx_seq(handle)), vocabulary)
