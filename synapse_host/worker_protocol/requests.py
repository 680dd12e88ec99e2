"""What the host asks of a worker, as plain values."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from synapse_host.values import value_object
from synapse_host.worker_protocol.message import U32, Items, Message, ReqId, TextMap, TokenCounts


@value_object
class Load(Message):
    """Load one artifact; the worker hashes it again and maps the very descriptor it hashed."""

    TYPE: ClassVar[str] = "LOAD"
    OPERATION: ClassVar[str] = "load"
    req_id: ReqId
    artifact_path: str
    artifact_digest: str
    format: str
    runtime_config: TextMap = field(default_factory=dict)


@value_object
class EmbedBatchRequest(Message):
    """Embed rows; one raw frame of all token ids (i32) follows. ``items`` holds {id, n_tokens}."""

    TYPE: ClassVar[str] = "EMBED_BATCH"
    RAW: ClassVar[bool] = True
    OPERATION: ClassVar[str] = "embed"
    req_id: ReqId
    model_ref: str
    pooling: str
    normalize: bool
    items: Items


@value_object
class Rerank(Message):
    """Score documents against a query; the worker composes the pairs.

    One raw frame of token ids (i32) follows: the query, then each candidate. ``candidates`` holds {n_tokens}.
    """

    TYPE: ClassVar[str] = "RERANK"
    RAW: ClassVar[bool] = True
    OPERATION: ClassVar[str] = "rerank"
    req_id: ReqId
    model_ref: str
    query_n_tokens: int
    candidates: TokenCounts


@value_object
class RerankSequences(Message):
    """Score composed sequences, to which the worker adds nothing; one raw frame of their token ids (i32) follows."""

    TYPE: ClassVar[str] = "RERANK_SEQUENCES"
    RAW: ClassVar[bool] = True
    OPERATION: ClassVar[str] = "rerank"
    req_id: ReqId
    model_ref: str
    sequences: TokenCounts


@value_object
class Generate(Message):
    """Continue a prompt by at most ``max_tokens``; one raw frame of the prompt's token ids (i32) follows.

    A ``grammar`` that is absent or empty constrains nothing.
    """

    TYPE: ClassVar[str] = "GENERATE"
    RAW: ClassVar[bool] = True
    OPERATION: ClassVar[str] = "generate"
    req_id: ReqId
    model_ref: str
    max_tokens: U32
    grammar: str | None = None


@value_object
class AdmitShape(Message):
    """Compile one sequence shape, in tokens, and keep it."""

    TYPE: ClassVar[str] = "ANE_ADMIT_SHAPE"
    OPERATION: ClassVar[str] = "admit"
    req_id: ReqId
    model_ref: str
    shape: int


@value_object
class EvictShape(Message):
    """Drop one compiled sequence shape."""

    TYPE: ClassVar[str] = "ANE_EVICT_SHAPE"
    OPERATION: ClassVar[str] = "evict"
    req_id: ReqId
    model_ref: str
    shape: int


@value_object
class PackedAdmit(Message):
    """Compile the program that holds several rows side by side in ``width`` columns, and keep it."""

    TYPE: ClassVar[str] = "PACKED_ADMIT"
    OPERATION: ClassVar[str] = "admit"
    req_id: ReqId
    model_ref: str
    width: int


@value_object
class PackedEvict(Message):
    """Drop the compiled program of ``width`` columns."""

    TYPE: ClassVar[str] = "PACKED_EVICT"
    OPERATION: ClassVar[str] = "evict"
    req_id: ReqId
    model_ref: str
    width: int


@value_object
class SelfCheck(Message):
    """Compute every operation and a tiny model of every family as the model is computed."""

    TYPE: ClassVar[str] = "SELF_CHECK"
    OPERATION: ClassVar[str] = "self_check"
    req_id: ReqId
    model_ref: str


@value_object
class Unload(Message):
    """Drop one model."""

    TYPE: ClassVar[str] = "UNLOAD"
    OPERATION: ClassVar[str] = "unload"
    req_id: ReqId
    model_ref: str


@value_object
class Ping(Message):
    """Ask for the worker's vital signs."""

    TYPE: ClassVar[str] = "PING"
    OPERATION: ClassVar[str] = "ping"
    req_id: ReqId


@value_object
class Shutdown(Message):
    """Exit 0 after the current request."""

    TYPE: ClassVar[str] = "SHUTDOWN"
    OPERATION: ClassVar[str] = "shutdown"
