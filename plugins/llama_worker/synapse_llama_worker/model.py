"""A loaded GGUF model: the weights once, and a context for each kind of call it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synapse_llama_worker.context import Context, ContextPlan
from synapse_llama_worker.limits import Limits

#: Sequences of one call; the engine takes up to 256 and gains nothing past 64.
ROWS = 64
#: Tokens of one call of an encoder, where the longest row needs no more: larger is slower.
ENCODING_BATCH = 512
#: Tokens of a prompt in one call; between two of them the host hears that there is progress.
PROMPT_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Facts:
    """What LOAD said and the file holds. ``positions`` tokens are the most of one row, or of prompt and reply."""

    operation: str
    positions: int
    width: int
    vocabulary: int
    threads: int
    classifier_outputs: int


class LlamaModel:
    """What ``synapse_load`` returns; ``close`` frees everything and may be called twice."""

    buckets = None

    def __init__(self, library: Any, handle: Any, facts: Facts) -> None:
        self.library = library
        self.facts = facts
        self.dims = facts.width if facts.operation == "embed" else 0
        self._handle = handle
        self._contexts: dict[str, Context] = {}
        self.vocabulary_handle = library.llama_model_get_vocab(handle)

    @property
    def row_limits(self) -> Limits:
        """The limits every row is held against before a context is needed."""
        return Limits(self._rows_batch, ROWS, self.facts.positions, self.facts.vocabulary)

    def context(self, pooling: str) -> Context:
        """The context for one pooling, made when first asked for; ``none`` is the one that generates."""
        context = self._contexts.get(pooling)
        if context is None:
            plan = self._generating_plan() if pooling == "none" else self._rows_plan(pooling)
            context = self._contexts[pooling] = Context(self.library, self._handle, plan, self.facts.vocabulary)
        return context

    def close(self) -> None:
        """Free contexts, then weights: a context points into them."""
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()
        handle, self._handle = self._handle, None
        if handle:
            self.library.llama_model_free(handle)

    @property
    def _rows_batch(self) -> int:
        return max(ENCODING_BATCH, self.facts.positions)

    def _rows_plan(self, pooling: str) -> ContextPlan:
        return ContextPlan(self._rows_batch, self.facts.positions, self._rows_batch, ROWS, pooling, self.facts.threads)

    def _generating_plan(self) -> ContextPlan:
        positions = self.facts.positions
        return ContextPlan(positions, positions, min(PROMPT_CHUNK, positions), 1, "none", self.facts.threads)
