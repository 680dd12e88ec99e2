"""The control messages of worker protocol v3, as plain values; bytes are made in ``codec``.

Stdlib only: a worker starts with this module, so it must be cheap to import. Sources: worker protocol v3; field
tables in the reference page ``docs/reference/worker-protocol.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

PROTOCOL_VERSION = 3
#: Largest frame either side may send unless HELLO_ACK lowers it: 64 MiB.
DEFAULT_MAX_FRAME = 64 * 1024 * 1024
#: Seconds the host waits for a spawned worker to connect, and then for its HELLO.
ACCEPT_DEADLINE_S = 5.0
HELLO_DEADLINE_S = 5.0

#: ERR codes a worker may answer with.
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
    "non_finite_output",
    "zero_output",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One control frame. ``TYPE`` is its tag; ``RAW`` says whether exactly one raw frame follows."""

    TYPE: ClassVar[str] = ""
    RAW: ClassVar[bool] = False

    def to_wire(self) -> dict[str, Any]:
        """The JSON object; fields that are None are left out."""
        wire: dict[str, Any] = {"type": self.TYPE} if self.TYPE else {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                wire[item.name] = value
        return wire


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First frame of a worker."""

    v: int
    nonce: str
    engine: Mapping[str, Any]
    pid: int
    max_frame: int
    manifest_digest: str | None = None
    kernel_revision: str | None = None
    packed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HelloAck(Message):
    """The host's answer; ``max_frame`` is the smaller of both sides'."""

    v: int
    accept: bool
    max_frame: int


# --- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Load one artifact; the worker hashes it again and maps the very descriptor it hashed."""

    TYPE: ClassVar[str] = "LOAD"
    req_id: str
    artifact_path: str
    artifact_digest: str
    format: str
    runtime_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbedBatchRequest(Message):
    """Embed rows; one raw frame of all token ids (i32) follows. ``items`` holds {id, n_tokens}."""

    TYPE: ClassVar[str] = "EMBED_BATCH"
    RAW: ClassVar[bool] = True
    req_id: str
    model_ref: str
    pooling: str
    normalize: bool
    items: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Unload(Message):
    """Drop one model."""

    TYPE: ClassVar[str] = "UNLOAD"
    req_id: str
    model_ref: str


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Ask for the worker's vital signs."""

    TYPE: ClassVar[str] = "PING"
    req_id: str


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """Exit 0 after the current request."""

    TYPE: ClassVar[str] = "SHUTDOWN"


# --- responses ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded(Message):
    """Answer to LOAD; ``buckets`` is the ladder of padded lengths where the backend has one."""

    TYPE: ClassVar[str] = "LOADED"
    req_id: str
    model_ref: str
    dims: int
    cold_load_ms: int
    buckets: list[int] | None = None


@dataclass(frozen=True, slots=True)
class VectorsHeader(Message):
    """Answer to EMBED_BATCH; exactly n * dims little-endian f32 follow in one raw frame."""

    TYPE: ClassVar[str] = "VECTORS"
    RAW: ClassVar[bool] = True
    req_id: str
    dims: int
    n: int


@dataclass(frozen=True, slots=True)
class Unloaded(Message):
    """Answer to UNLOAD."""

    TYPE: ClassVar[str] = "UNLOADED"
    req_id: str


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answer to PING."""

    TYPE: ClassVar[str] = "PONG"
    req_id: str
    rss_mb: int
    models_loaded: int
    placement_share: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressReport(Message):
    """Completed work within the current request; renews its silence window."""

    TYPE: ClassVar[str] = "PROGRESS"
    req_id: str
    completed: int
    phase: Literal["setup", "inference", "control"]


@dataclass(frozen=True, slots=True)
class Err(Message):
    """A typed refusal; ``req_id`` is absent only when the request could not be read."""

    TYPE: ClassVar[str] = "ERR"
    code: str
    msg: str
    req_id: str | None = None


REQUESTS: Mapping[str, type[Message]] = {m.TYPE: m for m in (Load, EmbedBatchRequest, Unload, Ping, Shutdown)}
RESPONSES: Mapping[str, type[Message]] = {
    m.TYPE: m for m in (Loaded, VectorsHeader, Unloaded, Pong, ProgressReport, Err)
}
