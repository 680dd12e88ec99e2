"""Whether a request and its answer fit the frames both sides agreed on. Pure; host and worker share the arithmetic.

A reply's control frame needs no arithmetic where nothing in it grows with the request: request ids are short, so it
fits the smallest frame that may be agreed. What a backend puts into one (a text, an inventory) is measured by the
worker once it is there, which refuses with ERR what would not fit.
"""

from __future__ import annotations

from synapse_host.worker_protocol.message import Message
from synapse_host.worker_protocol.requests import EmbedBatchRequest, Generate, Rerank, RerankSequences

#: Bytes of one token id (i32), one vector component and one score (f32) on the wire.
ELEMENT_BYTES = 4
#: Bytes of one token id in the JSON of TEXT at most: ten digits and a comma.
_JSON_ID_BYTES = 11
#: Bytes of TEXT beside its token ids and its text at most.
_TEXT_FIELDS_BYTES = 1024


def row_counts(request: Message) -> list[int]:
    """Tokens of each row in the raw frame of ``request``, in its order; for RERANK the query is the first row."""
    if isinstance(request, EmbedBatchRequest):
        return [item["n_tokens"] for item in request.items]
    if isinstance(request, Rerank):
        return [request.query_n_tokens, *(candidate["n_tokens"] for candidate in request.candidates)]
    if isinstance(request, RerankSequences):
        return [sequence["n_tokens"] for sequence in request.sequences]
    return []


def reply_bytes(request: Message, dims: int | None) -> int:
    """Bytes of the largest frame that answering ``request`` is sure to need; ``dims`` as LOADED said, if it did."""
    if isinstance(request, EmbedBatchRequest):
        return len(request.items) * (dims or 0) * ELEMENT_BYTES
    if isinstance(request, Rerank):
        return len(request.candidates) * ELEMENT_BYTES
    if isinstance(request, RerankSequences):
        return len(request.sequences) * ELEMENT_BYTES
    if isinstance(request, Generate):
        return _TEXT_FIELDS_BYTES + request.max_tokens * _JSON_ID_BYTES
    return 0


def misfit(
    request: Message, *, control_bytes: int = 0, raw_bytes: int = 0, dims: int | None, max_frame: int
) -> str | None:
    """What of ``request`` or its answer passes ``max_frame``, with the numbers and the remedy; None when all fits."""
    needed = max(control_bytes, raw_bytes)
    if needed > max_frame:
        return (
            f"{request.TYPE} needs a frame of {needed} bytes and at most {max_frame} fit; send fewer or shorter items"
        )
    answer = reply_bytes(request, dims)
    if answer > max_frame:
        return (
            f"the answer to {request.TYPE} ({_asked(request, dims)}) needs a frame of {answer} bytes and at most "
            f"{max_frame} fit; ask for less at once"
        )
    return None


def _asked(request: Message, dims: int | None) -> str:
    if isinstance(request, Generate):
        return f"max_tokens {request.max_tokens}"
    if isinstance(request, EmbedBatchRequest):
        return f"{len(request.items)} vectors of {dims} dims"
    return f"{reply_bytes(request, dims) // ELEMENT_BYTES} scores"
