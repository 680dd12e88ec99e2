"""What a worker is sent for one group of token rows. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from synapse_host.models.registered_model import RegisteredModel
from synapse_host.worker_protocol.messages import EmbedBatchRequest, RerankSequences

Rows = Sequence[Sequence[int]]


def embed_message(req_id: str, model_ref: str, model: RegisteredModel, rows: Rows) -> EmbedBatchRequest:
    """The request for the vectors of ``rows``."""
    # The worker is told positions, not the caller's ids: a long id cannot make a frame too large.
    items = [{"id": str(position), "n_tokens": len(row)} for position, row in enumerate(rows)]
    return EmbedBatchRequest(req_id, model_ref, items=items, pooling=model.pooling, normalize=model.normalize)


def rerank_message(req_id: str, model_ref: str, model: RegisteredModel, rows: Rows) -> RerankSequences:
    """The request for the scores of the composed sequences ``rows``; nothing of the model is said with it."""
    return RerankSequences(req_id, model_ref, sequences=[{"n_tokens": len(row)} for row in rows])


def token_bytes(rows: Rows) -> bytes:
    """The token ids of ``rows`` as little-endian i32, one row after the other."""
    ids = array("i")
    for row in rows:
        ids.extend(row)
    return ids.tobytes()
