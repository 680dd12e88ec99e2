"""What a refused LOAD says of the model it was for. Pure."""

from __future__ import annotations

from synapse_host.errors import BackendUnavailable, SynapseError
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error


def load_refusal(refusal: WorkerRefusal, model: RegisteredModel) -> SynapseError:
    """The error of a refused LOAD before any file is looked at; one about the machine says for which model."""
    error = to_synapse_error(refusal)
    if isinstance(error, BackendUnavailable):
        missing = {"backend": model.backend, "reason": "worker_missing", "reason_detail": refusal.code}
        known = {"catalog_id": model.catalog_id, "lane_id": model.model_id, "backends": [missing]}
        error.details = {**(error.details or {}), **known}
    return error
