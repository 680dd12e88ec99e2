"""What carrying out a job needs of a lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from synapse_host.hookspecs import BatchPolicy
from synapse_host.store.job_tables import JobRow
from synapse_host.tokenization.model_tokenizer import EncodedText


class TextEncoder(Protocol):
    """Turns texts into tokens; called in a thread."""

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Each text's tokens, in the order given."""
        ...


class JobLane(Protocol):
    """A lane as a job sees it."""

    @property
    def policy(self) -> BatchPolicy:
        """How large a group the backend measured to be best."""
        ...

    @property
    def buckets(self) -> tuple[int, ...] | None:
        """Padded lengths of the loaded engine, where it has a ladder."""
        ...

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer; there once the lane was loaded."""
        ...

    def lease(self, holder: Mapping[str, str] | None = None) -> AbstractContextManager[None]:
        """Hold the lane for the length of the block."""
        ...

    async def load(self) -> None:
        """Load if need be and wait to the end; raises what the load failed with."""
        ...

    async def embed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str]) -> tuple[int, bytes]:
        """Vectors of token rows as little-endian float32 in the order given, and their width."""
        ...


#: The lane that may carry out a job now. Raises the refusal: another fingerprint, quarantined, paused, not certified.
#: Asked again before every group, so that a fence put up meanwhile is met at once.
ServingLane = Callable[[JobRow], JobLane]
