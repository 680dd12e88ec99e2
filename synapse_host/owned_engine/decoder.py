"""One model loaded to generate: from a prompt's token ids to the ids that follow, on any backend that can decode.

A prompt is read in long pieces and every token after it alone, over the keys and values a session keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import Generation, PluginError, Progress
from synapse_host.ops.tensor_ops import Batch, Cache, Handle, TensorOps
from synapse_host.owned_engine.engine import ModelSettings, model_config
from synapse_host.owned_engine.greedy import Session, continued

Int32: TypeAlias = npt.NDArray[np.int32]
#: Writes one reading over a backend's ops: (ops, batch, cache) to the next token of each row, i32[B, 1].
Reading: TypeAlias = Callable[[TensorOps, Batch, Cache], Handle]


class DecodingBackend(Protocol):
    """One device's way to read a text piece by piece."""

    def session(self, reading: Reading) -> Session:
        """A text of which nothing is read yet; raises ``ValueError`` when a tensor is missing or misshapen."""

    def close(self) -> None:
        """Drop everything the backend holds for the model."""


class OwnedDecoder:
    """A decoder on one backend. It makes no vectors, so ``dims`` is 0; every request starts a session of its own."""

    dims = 0
    buckets: Sequence[int] | None = None

    def __init__(self, backend: DecodingBackend, settings: ModelSettings, stop_ids: Sequence[int]) -> None:
        if settings.family.next_token is None:
            raise PluginError(
                "operation_mismatch",
                f"operation 'generate' is none of a model of family {settings.family.name}; load one that generates",
            )
        self._backend = backend
        self.settings = settings
        self._max_tokens = settings.max_tokens
        config = model_config(settings, "last", False)
        self._vocab_size = config.vocab_size
        self._reading = _reading(settings, config)
        self._stop_ids = frozenset(stop_ids)

    def warm_up(self, progress: Progress) -> None:
        """Read one token: a missing or misshapen tensor shows here, not in service.

        Raises:
            PluginError: artifact_invalid, with the tensor's name and shapes.

        """
        try:
            self._backend.session(self._reading).next_token((0,))
        except ValueError as mismatch:
            raise PluginError("artifact_invalid", str(mismatch)) from mismatch
        progress(1, "setup")

    def generate(self, prompt: Int32, options: Mapping[str, Any], progress: Progress) -> Generation:
        """Continue ``prompt`` (int32, at least one id) by at most ``options["max_tokens"]`` ids, greedily.

        It ends with ``stop`` before a stop id, which is left out, and with ``length`` at the limit asked for or when
        the lane has no position left. Progress counts pieces of work, each a part of the prompt or a generated token,
        and carries the token.

        Raises:
            PluginError: invalid_request for a prompt the lane cannot hold or an id outside the vocabulary;
                non_finite_output when the model's numbers are no numbers any more.

        """
        ids = self._checked(prompt)
        # The last token generated is never read, so it needs no position.
        most = min(options["max_tokens"], self._max_tokens - len(ids) + 1)

        pieces = count(1)

        def worked(tokens: tuple[int, ...]) -> None:
            progress(next(pieces), "inference", tokens)

        session = _Sound(self._backend.session(self._reading), self._vocab_size)
        made, reason = continued(session, ids, self._stop_ids, most, worked)
        return Generation(made, reason, len(ids))

    def unload(self) -> None:
        """Drop the weights; the decoder cannot be used afterwards."""
        self._backend.close()

    def _checked(self, prompt: Int32) -> list[int]:
        ids: list[int] = prompt.tolist()
        if not 1 <= len(ids) <= self._max_tokens:
            raise PluginError(
                "invalid_request",
                f"a prompt of {len(ids)} tokens does not fit a lane of 1 to {self._max_tokens}; shorten it",
            )
        outside = next((token for token in ids if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise PluginError(
                "invalid_request",
                f"token id {outside} of the prompt is outside the vocabulary of {self._vocab_size}; "
                "use the tokenizer published with the model",
            )
        return ids


class _Sound:
    """A session whose every token is one of the vocabulary: logits of NaN have no largest."""

    def __init__(self, session: Session, vocab_size: int) -> None:
        self._session = session
        self._vocab_size = vocab_size

    def next_token(self, ids: Sequence[int]) -> int:
        token = self._session.next_token(ids)
        if not 0 <= token < self._vocab_size:
            raise PluginError(
                "non_finite_output", f"the logits after token id {ids[-1]} are NaN; use another dtype or backend"
            )
        return token


def _reading(settings: ModelSettings, config: Any) -> Reading:
    family = settings.family

    def read(ops: TensorOps, batch: Batch, cache: Cache) -> Handle:
        x = family.stem(ops, config, batch)
        for i in range(config.layers):
            x = family.block(ops, config, i, x, batch, cache)
        assert family.next_token is not None
        return family.next_token(ops, config, x, batch)

    return read
