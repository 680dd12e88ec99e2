"""Answers of rerank.score, checked against what was sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.replies import Truncation, truncation_of


@dataclass(frozen=True, slots=True)
class RerankReply:
    """Raw scores and the identity of what computed them; every sequence is in the order of the documents sent.

    ``score_kind`` says what a score is: ``logit``, any number, or ``probability``, 0 to 1. Scores of different
    fingerprints or queries have no common scale.
    """

    scores: tuple[float, ...]
    score_kind: str
    fingerprint: str
    table_epoch: int
    module_generation: int
    provenance: Mapping[str, Any]
    equivalent_to: tuple[str, ...]
    real_token_counts: tuple[int, ...]
    truncations: tuple[Truncation, ...]

    def order(self) -> list[int]:
        """Places of the documents, best first; those of equal score in the order they were sent."""
        return sorted(range(len(self.scores)), key=lambda place: -self.scores[place])


def read_rerank_reply(received: Received, documents: int) -> RerankReply:
    """The typed reply.

    Raises:
        ReplyMismatch: another number of scores than documents, a score that is no number, or a field missing.

    """
    payload = received.payload
    try:
        reply = RerankReply(
            scores=tuple(map(float, payload["scores"])),
            score_kind=payload["score_kind"],
            fingerprint=payload["fingerprint"],
            table_epoch=payload["table_epoch"],
            module_generation=payload["module_generation"],
            provenance=payload["provenance"],
            equivalent_to=tuple(payload["equivalent_to"]),
            real_token_counts=tuple(payload["real_token_counts"]),
            truncations=tuple(map(truncation_of, payload["truncation_disclosures"])),
        )
    except (KeyError, TypeError, ValueError) as fault:
        keys = ", ".join(payload)
        raise ReplyMismatch(f"the reply to rerank.score is incomplete: {fault!r}; it holds {keys}") from fault
    counts = {len(reply.scores), len(reply.real_token_counts), len(reply.truncations)}
    if counts != {documents} or not all(map(math.isfinite, reply.scores)):
        raise ReplyMismatch(
            f"rerank.score was asked for {documents} documents and answered {len(reply.scores)} scores, "
            f"{len(reply.real_token_counts)} counts and {len(reply.truncations)} disclosures; ask again"
        )
    return reply
