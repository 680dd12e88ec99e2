"""The whole vocabulary of worker protocol v3: its numbers, its handshake, and every message by its wire type.

Bytes are made in ``codec``. A worker starts with this module, so it must be cheap to import. Sources:
worker protocol v3; field tables in the reference page ``docs/reference/worker-protocol.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from synapse_host.values import value_object
from synapse_host.worker_protocol.message import U32, EngineFields, Message, PackedFields
from synapse_host.worker_protocol.replies import (
    Admitted,
    Err,
    Evicted,
    Loaded,
    Pong,
    ProgressReport,
    Scores,
    SelfChecked,
    Text,
    Unloaded,
    VectorsHeader,
)
from synapse_host.worker_protocol.requests import (
    AdmitShape,
    EmbedBatchRequest,
    EvictShape,
    Generate,
    Load,
    PackedAdmit,
    PackedEvict,
    Ping,
    Rerank,
    RerankSequences,
    SelfCheck,
    Shutdown,
    Unload,
)

__all__ = [
    "ACCEPT_DEADLINE_S",
    "DEFAULT_MAX_FRAME",
    "ERR_CODES",
    "HELLO_DEADLINE_S",
    "PROTOCOL_VERSION",
    "REQUESTS",
    "RESPONSES",
    "SMALLEST_MAX_FRAME",
    "AdmitShape",
    "Admitted",
    "EmbedBatchRequest",
    "Err",
    "EvictShape",
    "Evicted",
    "Generate",
    "Hello",
    "HelloAck",
    "Load",
    "Loaded",
    "Message",
    "PackedAdmit",
    "PackedEvict",
    "Ping",
    "Pong",
    "ProgressReport",
    "Rerank",
    "RerankSequences",
    "Scores",
    "SelfCheck",
    "SelfChecked",
    "Shutdown",
    "Text",
    "Unload",
    "Unloaded",
    "VectorsHeader",
]

PROTOCOL_VERSION = 3
#: Largest frame either side may send unless HELLO_ACK lowers it: 64 MiB.
DEFAULT_MAX_FRAME = 64 * 1024 * 1024
#: Least frame size that may be agreed, in bytes: whatever the request, an ERR with its text fits.
SMALLEST_MAX_FRAME = 4096
#: Seconds the host waits for a spawned worker to connect, and then for its HELLO.
ACCEPT_DEADLINE_S = 5.0
HELLO_DEADLINE_S = 5.0

#: ERR codes a worker may answer with: those of original facts 1.4, then two of reading 4.
ERR_CODES = (
    "artifact_invalid",
    "oom",
    "config_invalid",
    "unsupported_request",
    "manifest_mismatch",
    "kernel_revision_mismatch",
    "model_unsupported",
    "operation_mismatch",
    "package_digest_mismatch",
    "head_tensor_missing",
    "model_not_loaded",
    "invalid_request",
    "inference_failed",
    "load_failed",
    "backend_missing",
    "unknown_type",
    "shape_not_admitted",
    "ane_lane_busy",
    "ane_resources_exhausted",
    "ane_residency_limit",
    "ane_private_api_unavailable",
    "non_finite_output",
    "zero_output",
)


@value_object
class Hello(Message):
    """First frame of a worker; ``packed`` is {widths, max_rows} of a backend with packed programs."""

    v: int
    nonce: str
    engine: EngineFields
    pid: U32
    max_frame: U32
    manifest_digest: str | None = None
    kernel_revision: str | None = None
    packed: PackedFields | None = None


@value_object
class HelloAck(Message):
    """The host's answer; ``max_frame`` is the smaller of both sides'."""

    v: int
    accept: bool
    max_frame: U32


REQUESTS: Mapping[str, type[Message]] = {
    kind.TYPE: kind
    for kind in (
        Load,
        EmbedBatchRequest,
        Rerank,
        RerankSequences,
        Generate,
        AdmitShape,
        EvictShape,
        PackedAdmit,
        PackedEvict,
        SelfCheck,
        Unload,
        Ping,
        Shutdown,
    )
}
RESPONSES: Mapping[str, type[Message]] = {
    kind.TYPE: kind
    for kind in (
        Loaded,
        VectorsHeader,
        Scores,
        Text,
        Admitted,
        Evicted,
        SelfChecked,
        Unloaded,
        Pong,
        ProgressReport,
        Err,
    )
}
