"""Whether a reply is the lawful answer to its request. Pure; a fault here ends the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.frame_budget import ELEMENT_BYTES, reply_bytes
from synapse_host.worker_protocol.messages import (
    AdmitShape,
    Admitted,
    EmbedBatchRequest,
    Err,
    Evicted,
    EvictShape,
    Generate,
    Load,
    Loaded,
    Message,
    PackedAdmit,
    PackedEvict,
    Ping,
    Pong,
    Rerank,
    RerankSequences,
    Scores,
    SelfCheck,
    SelfChecked,
    Text,
    Unload,
    Unloaded,
    VectorsHeader,
)

#: Characters kept of the text and of the code of ERR: both end up in errors and logs, and a frame may be 64 MiB long.
_MOST_SAID, _LONGEST_CODE = 2000, 80

#: Request -> the one reply, besides ERR, that ends it.
REPLIES: Mapping[type[Message], type[Message]] = {
    Load: Loaded,
    EmbedBatchRequest: VectorsHeader,
    Rerank: Scores,
    RerankSequences: Scores,
    Generate: Text,
    AdmitShape: Admitted,
    EvictShape: Evicted,
    PackedAdmit: Admitted,
    PackedEvict: Evicted,
    SelfCheck: SelfChecked,
    Unload: Unloaded,
    Ping: Pong,
}


def check_reply(request: Message, reply: Message, *, sent_bytes: int, dims: int | None) -> None:
    """Judge the control frame of a reply to ``request``, whose raw frame had ``sent_bytes``.

    ``dims`` is what LOADED said of the model, None where the host has not loaded it.

    Raises:
        WorkerRefusal: it is ERR for this request.
        ProtocolFault: it answers something else, or its counts are not those of the request.

    """
    wanted: Any = getattr(request, "req_id", None)
    answered: Any = getattr(reply, "req_id", None)
    if isinstance(reply, Err) and answered is None:
        raise ProtocolFault(f"the worker could not read {request.TYPE}: {reply.msg[:_MOST_SAID]}")
    if answered != wanted:
        raise ProtocolFault(f"{reply.TYPE} answers request {answered!r} while {wanted!r} is in flight")
    if isinstance(reply, Err):
        raise WorkerRefusal(reply.code[:_LONGEST_CODE], reply.msg[:_MOST_SAID])
    expected = REPLIES[type(request)]
    if not isinstance(reply, expected):
        raise ProtocolFault(f"{reply.TYPE} answers {request.TYPE}, which {expected.TYPE} answers")
    if isinstance(request, EmbedBatchRequest) and isinstance(reply, VectorsHeader):
        _check_vectors(request, reply, dims)
    if isinstance(request, Generate) and isinstance(reply, Text):
        _check_text(request, reply, sent_bytes // ELEMENT_BYTES)


def check_raw(request: Message, reply: Message, raw: bytes | bytearray | None) -> None:
    """Judge the raw frame of a lawful ``reply``; raises ``ProtocolFault`` when it has not the bytes announced."""
    actual = len(raw or b"")
    if isinstance(reply, VectorsHeader) and actual != reply.n * reply.dims * ELEMENT_BYTES:
        expected = reply.n * reply.dims * ELEMENT_BYTES
        raise ProtocolFault(
            f"the frame after VECTORS has {actual} bytes; {reply.n} rows of {reply.dims} dims take {expected}"
        )
    if isinstance(reply, Scores) and actual != reply_bytes(request, None):
        expected = reply_bytes(request, None)
        count = expected // ELEMENT_BYTES
        raise ProtocolFault(f"the frame after SCORES has {actual} bytes; {count} candidates take {expected}")

    if isinstance(reply, SelfChecked) and actual != checked_bytes(reply):
        raise ProtocolFault(f"the frame after SELF_CHECKED has {actual} bytes; its checks take {checked_bytes(reply)}")


def checked_bytes(reply: SelfChecked) -> int:
    """Bytes of the raw frame that belongs to ``reply``."""
    numbers: int = sum(check["rows"] * check["width"] for check in reply.checks)
    return numbers * ELEMENT_BYTES


def _check_vectors(request: EmbedBatchRequest, reply: VectorsHeader, dims: int | None) -> None:
    rows = len(request.items)
    if reply.n != rows:
        raise ProtocolFault(f"VECTORS holds {reply.n} rows for a batch of {rows}")
    if dims is not None and reply.dims != dims:
        raise ProtocolFault(f"VECTORS has {reply.dims} dims and LOADED said {dims}")


def _check_text(request: Generate, reply: Text, prompt_tokens: int) -> None:
    if reply.n_prompt != prompt_tokens:
        raise ProtocolFault(f"TEXT counts {reply.n_prompt} prompt tokens and {prompt_tokens} were sent")
    if reply.n_gen > request.max_tokens:
        raise ProtocolFault(f"TEXT counts {reply.n_gen} generated tokens and at most {request.max_tokens} were asked")
    given = len(reply.generated_token_ids or ())
    if given != reply.n_gen:
        raise ProtocolFault(f"TEXT counts {reply.n_gen} generated tokens and gives {given} ids")
    if not _is_unicode(reply.text):
        raise ProtocolFault(f"TEXT holds {reply.text[:80]!r}, in which half a surrogate pair is no character")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
