"""The envelope of every inference answer: the numeric identity of what computed it (wire contract section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.models.registered_model import RegisteredModel
from synapse_host.tokenization.model_tokenizer import EncodedText
from synapse_host.tokenization.pairs import ComposedPair


def inference_envelope(
    model: RegisteredModel, *, dims: int, table_epoch: int, module_generation: int, equivalent_to: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields that stand beside an operation's own payload."""
    engine = model.engine
    return {
        "fingerprint": model.fingerprint,
        "table_epoch": table_epoch,
        "dims": dims,
        "provenance": {
            "engine": {"engine": engine.engine, "version": engine.version, "build_flags": dict(engine.build_flags)}
        },
        "module_generation": module_generation,
        "equivalent_to": list(equivalent_to),
    }


def truncation_disclosure(read: EncodedText | ComposedPair) -> dict[str, Any]:
    """How much of a text or a pair the model read (``truncation_disclosures`` of the wire contract)."""
    return {
        "submitted_tokens": read.submitted_tokens,
        "effective_tokens": read.effective_tokens,
        "truncated": read.truncated,
    }
