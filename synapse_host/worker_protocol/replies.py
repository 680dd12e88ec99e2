"""What a worker answers, as plain values."""

from __future__ import annotations

from typing import ClassVar

from synapse_host.values import value_object
from synapse_host.worker_protocol.message import (
    Checks,
    FinishReason,
    Inventory,
    Message,
    Phase,
    ReqId,
    ShapeTable,
    Share,
    ShareTable,
)


@value_object
class Loaded(Message):
    """Answer to LOAD; ``buckets`` is the ladder of padded lengths where the backend has one."""

    TYPE: ClassVar[str] = "LOADED"
    req_id: ReqId
    model_ref: str
    dims: int
    cold_load_ms: int
    buckets: list[int] | None = None


@value_object
class VectorsHeader(Message):
    """Answer to EMBED_BATCH; exactly n * dims little-endian f32 follow in one raw frame."""

    TYPE: ClassVar[str] = "VECTORS"
    RAW: ClassVar[bool] = True
    req_id: ReqId
    dims: int
    n: int


@value_object
class Scores(Message):
    """Answer to RERANK and RERANK_SEQUENCES; one little-endian f32 per candidate follows in one raw frame."""

    TYPE: ClassVar[str] = "SCORES"
    RAW: ClassVar[bool] = True
    req_id: ReqId


@value_object
class Text(Message):
    """Answer to GENERATE; ``generated_token_ids`` is left out when nothing was generated."""

    TYPE: ClassVar[str] = "TEXT"
    req_id: ReqId
    text: str
    n_prompt: int
    n_gen: int
    finish_reason: FinishReason
    generated_token_ids: list[int] | None = None


@value_object
class Admitted(Message):
    """Answer to ANE_ADMIT_SHAPE and PACKED_ADMIT: everything of that model that is compiled now."""

    TYPE: ClassVar[str] = "ADMITTED"
    req_id: ReqId
    inventory: Inventory


@value_object
class Evicted(Message):
    """Answer to ANE_EVICT_SHAPE and PACKED_EVICT."""

    TYPE: ClassVar[str] = "EVICTED"
    req_id: ReqId


@value_object
class SelfChecked(Message):
    """Answer to SELF_CHECK; the f32 of all checks, rows * width of each, follow in one raw frame.

    ``checks`` holds {kind, subject, label, rows, width, scale, fault}.
    """

    TYPE: ClassVar[str] = "SELF_CHECKED"
    RAW: ClassVar[bool] = True
    req_id: ReqId
    checks: Checks


@value_object
class Unloaded(Message):
    """Answer to UNLOAD."""

    TYPE: ClassVar[str] = "UNLOADED"
    req_id: ReqId


@value_object
class Pong(Message):
    """Answer to PING.

    By model reference, ``ane_resident_shapes`` holds the admitted shapes and ``placement_shares`` the share of
    operations on the device; ``placement_share`` is the lowest of these.
    """

    TYPE: ClassVar[str] = "PONG"
    req_id: ReqId
    rss_mb: int
    models_loaded: int
    placement_share: Share | None = None
    buckets: list[int] | None = None
    ane_resident_shapes: ShapeTable | None = None
    placement_shares: ShareTable | None = None


@value_object
class ProgressReport(Message):
    """Completed work within the current request; renews its silence window."""

    TYPE: ClassVar[str] = "PROGRESS"
    req_id: ReqId
    completed: int
    phase: Phase


@value_object
class Err(Message):
    """A typed refusal; ``req_id`` is absent only when the request could not be read."""

    TYPE: ClassVar[str] = "ERR"
    code: str
    msg: str
    req_id: ReqId | None = None
