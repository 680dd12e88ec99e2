"""A worker's ERR reply, and the stable error it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synapse_host.errors import (
    EXCEPTIONS,
    ArtifactInvalid,
    BackendUnavailable,
    EngineCrashed,
    InvalidRequest,
    SynapseError,
)
from synapse_host.worker_protocol.item_refusal import refused_item

#: ERR codes about the model's files.
_ARTIFACT_CODES = frozenset({"artifact_invalid", "package_digest_mismatch", "head_tensor_missing"})
#: ERR codes about what was asked: the same request can never succeed on this worker.
_REQUEST_CODES = frozenset(
    {
        "config_invalid",
        "model_unsupported",
        "operation_mismatch",
        "unsupported_request",
        "unknown_type",
        "invalid_request",
    }
)
#: ERR codes about this machine: what the engine runs on is not here, and no retry brings it.
_MACHINE_CODES = frozenset({"backend_missing", "ane_private_api_unavailable"})
#: ERR codes about room on the Neural Engine, which others will give up again.
_ROOM_CODES = frozenset({"ane_lane_busy", "ane_resources_exhausted", "ane_residency_limit"})
#: ERR codes about output that must not be served: permanent, and neither adding nor clearing a strike (reading 4).
_OUTPUT_CODES = frozenset({"non_finite_output", "zero_output"})


class WorkerRefusal(Exception):
    """An ERR reply: the worker is alive and refused this one request with ``code``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def to_synapse_error(refusal: WorkerRefusal, *, item_id: str | None = None) -> SynapseError:
    """The stable error for ``refusal``.

    ``item_id`` names the item at fault where the caller knows it; otherwise the refusal's own text is searched. A
    code that is in no table above is the engine's failure: ``engine_crashed``, transient.
    """
    details: dict[str, Any] = {"reason": refusal.code}
    item_id = item_id if item_id is not None else refused_item(refusal.message)
    if item_id is not None:
        details["item_id"] = item_id
    return _error(refusal, details)


def _error(refusal: WorkerRefusal, details: Mapping[str, Any]) -> SynapseError:
    message = f"the worker refused with {refusal.code}: {refusal.message}"
    if refusal.code in _ARTIFACT_CODES:
        return ArtifactInvalid(message, details=details)
    if refusal.code in _REQUEST_CODES:
        return InvalidRequest(message, details=details)
    if refusal.code in _MACHINE_CODES:
        # Whoever knows the model fills in which one it is; a client reads these keys either way.
        return BackendUnavailable(message, details={"catalog_id": None, "lane_id": None, "backends": [], **details})
    if refusal.code in _ROOM_CODES:
        return EXCEPTIONS["ane_resources_exhausted"](message, details=details)
    if refusal.code in _OUTPUT_CODES:
        return EngineCrashed(message, details=details, error_class="permanent")
    return EngineCrashed(message, details=details)
