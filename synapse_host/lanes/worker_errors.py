"""What a worker's refusals and crashes mean for a lane's callers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from synapse_host.errors import EXCEPTIONS, ArtifactInvalid, EngineCrashed, SynapseError
from synapse_host.model_files.source_files import FileDigest, digest_file
from synapse_host.models.file_errors import artifact_invalid
from synapse_host.models.load_refusals import load_refusal
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.worker_protocol.item_refusal import refusal_text, refused_item

#: Ends of a worker that are its own doing: crash, protocol fault and hang. A worker that could not be spawned, was slow
#: to speak or was stopped adds no strike (original facts 1.1), and neither does an ERR reply.
_STRIKES = frozenset({"exited", "protocol_fault", "silence", "handshake_refused"})
#: Refused handshakes of a sound worker: it is another package than the one the model was registered with.
_OTHER_PACKAGE = frozenset({"manifest_mismatch", "kernel_revision_mismatch"})


async def load_error(refusal: WorkerRefusal, model: RegisteredModel) -> SynapseError:
    """The error of a refused LOAD; a bad artifact gets the details object of wire contract section 2.

    The files are hashed again for it, to name the one that is another: only a refused load pays for that.
    """
    error = load_refusal(refusal, model)
    if not isinstance(error, ArtifactInvalid):
        return error
    name, sha256, size, actual = await anyio.to_thread.run_sync(_file_at_fault, model)
    return artifact_invalid(
        name,
        f"{error.message}{_remedy(error.message, sha256, actual)}",
        expected_sha256=sha256,
        expected_size=size,
        actual=actual,
    )


def _remedy(message: str, sha256: str, actual: FileDigest | None) -> str:
    """What is to be done about a file that was refused, where the worker's own words do not say it."""
    if actual is None:
        return "; restore the file"
    if actual.sha256 != sha256:
        return "; restore the file, or load the model again to register it as it is now"
    # What is as it was registered is not mended by restoring it.
    if "; " in message:
        return ""
    return "; the file is as it was registered, so load another, or this one with another dtype or backend"


def embed_error(refusal: WorkerRefusal, item_ids: Sequence[str]) -> SynapseError:
    """The error of a refused group; the worker knows items by position, the caller by id."""
    position = refused_item(refusal.message)
    if position is None or position not in map(str, range(len(item_ids))):
        # A plugin may word its refusals as it likes; a number that is no position names no item.
        return to_synapse_error(refusal)
    item_id = item_ids[int(position)]
    text = refusal.message.replace(refusal_text(position, ""), refusal_text(item_id, ""), 1)
    return to_synapse_error(WorkerRefusal(refusal.code, text), item_id=item_id)


def shape_compiling(lane_id: str, shape: int) -> SynapseError:
    """What a request of ``lane_id`` is told whose deadline passed while ``shape`` was compiled; that goes on."""
    return EXCEPTIONS["shape_compiling"](
        f"the Neural Engine is compiling shape {shape}, and model {lane_id!r} waits for it; retry shortly, or give "
        "deadline_ms of 30000 and more for a length that was not used before",
        details={"lane_id": lane_id, "shape": shape},
    )


def is_strike(error: SynapseError) -> bool:
    """Whether ``error`` is a crash, protocol fault or hang of the worker (worker protocol v3, reliability)."""
    details = error.details or {}
    return isinstance(error, EngineCrashed) and is_strike_fault(details.get("reason"), details.get("handshake_code"))


def other_package(error: SynapseError) -> bool:
    """Whether ``error`` is a worker that is not what the model was registered with: other kernels, another driver."""
    return (error.details or {}).get("handshake_code") in _OTHER_PACKAGE


def is_strike_fault(reason: str | None, handshake_code: str | None) -> bool:
    """Whether a worker that ended for ``reason``, at a HELLO refused with that code, is a strike against its lane."""
    return reason in _STRIKES and handshake_code not in _OTHER_PACKAGE


def _file_at_fault(model: RegisteredModel) -> tuple[str, str, int, FileDigest | None]:
    """The first file of weights that is not the registered one, or the model file: name, digest, size, what it is."""
    whole = (model.model_path, model.model_sha256, model.model_size)
    for path, sha256, size in (whole, *((shard.path, shard.sha256, shard.size) for shard in model.shards)):
        actual = _digest_now(Path(path))
        if actual is None or actual.sha256 != sha256 or not model.shards:
            return Path(path).name, sha256, size, actual
    return Path(whole[0]).name, *whole[1:], FileDigest(*whole[1:])


def _digest_now(path: Path) -> FileDigest | None:
    try:
        return digest_file(path)
    except ArtifactInvalid:
        return None
