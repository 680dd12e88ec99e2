"""The answer of microllm.oneshot, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.replies import Truncation, truncation_of


@dataclass(frozen=True, slots=True)
class GenerateReply:
    """Generated text and the identity of what made it.

    ``finish_reason`` is ``stop`` where the model ended the text and ``length`` where the limit did. ``truncation``
    tells how much of the prompt was read.
    """

    text: str
    finish_reason: str
    n_prompt: int
    n_gen: int
    generated_token_ids: tuple[int, ...]
    truncation: Truncation
    fingerprint: str
    table_epoch: int
    module_generation: int
    provenance: Mapping[str, Any]


def read_generate_reply(received: Received) -> GenerateReply:
    """The typed reply of microllm.oneshot; raises ``ReplyMismatch`` for a field that is missing or contradicts."""
    payload = received.payload
    try:
        ids = tuple(payload["generated_token_ids"])
        if len(ids) != payload["n_gen"]:
            raise ValueError(f"{len(ids)} generated ids and n_gen {payload['n_gen']}")
        return GenerateReply(
            text=payload["text"],
            finish_reason=payload["finish_reason"],
            n_prompt=payload["n_prompt"],
            n_gen=payload["n_gen"],
            generated_token_ids=ids,
            truncation=truncation_of(payload["truncation_disclosures"][0]),
            fingerprint=payload["fingerprint"],
            table_epoch=payload["table_epoch"],
            module_generation=payload["module_generation"],
            provenance=payload["provenance"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        keys = ", ".join(payload)
        raise ReplyMismatch(f"the reply to microllm.oneshot is incomplete: {fault!r}; it holds {keys}") from fault
