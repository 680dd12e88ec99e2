"""What a worker's refusals and crashes mean for a lane's callers. Pure but for reading a file's size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from synapse_host.errors import ArtifactInvalid, EngineCrashed, SynapseError
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.worker_protocol.item_refusal import refusal_text, refused_item

#: Ends of a worker that are not the engine's doing and add no strike.
_NO_STRIKE = frozenset({"handshake_timeout", "stopped"})


def load_error(refusal: WorkerRefusal, model: RegisteredModel) -> SynapseError:
    """The error of a refused LOAD; a bad artifact gets the details object of wire contract section 2."""
    error = to_synapse_error(refusal)
    if not isinstance(error, ArtifactInvalid):
        return error
    path = Path(model.model_path)
    return ArtifactInvalid(
        f"{error.message}; restore the file and load the model again",
        details={
            "file": path.name,
            "expected_sha256": model.model_sha256,
            "actual_sha256": None,
            "expected_size": model.model_size,
            "actual_size": path.stat().st_size if path.is_file() else None,
            "recovery_op": "model.load",
        },
    )


def embed_error(refusal: WorkerRefusal, item_ids: Sequence[str]) -> SynapseError:
    """The error of a refused group; the worker knows items by position, the caller by id."""
    position = refused_item(refusal.message)
    if position is None:
        return to_synapse_error(refusal)
    item_id = item_ids[int(position)]
    text = refusal.message.replace(refusal_text(position, ""), refusal_text(item_id, ""), 1)
    return to_synapse_error(WorkerRefusal(refusal.code, text), item_id=item_id)


def is_strike(error: SynapseError) -> bool:
    """Whether ``error`` is a crash, protocol fault or hang of the worker (worker protocol v3, reliability)."""
    return (
        isinstance(error, EngineCrashed)
        and error.error_class == "transient"
        and (error.details or {}).get("reason") not in _NO_STRIKE
    )
