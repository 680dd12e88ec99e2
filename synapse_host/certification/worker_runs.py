"""Vectors of token rows from a worker that lives only for the run."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from synapse_host.lanes.batching import DEFAULT_POLICY, group_rows
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.worker import Worker
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Load, Loaded, VectorsHeader

StartWorker = Callable[[RegisteredModel], Awaitable[Worker]]


async def vectors_of(
    start_worker: StartWorker, model: RegisteredModel, rows: Sequence[Sequence[int]], *, threads: int
) -> npt.NDArray[np.float32]:
    """Load ``model`` in a fresh worker, embed ``rows``, stop the worker; float32 [rows, dims] in the order given.

    Raises:
        SynapseError: the worker could not be started, refused, or died.

    """
    worker = await start_worker(model)
    try:
        loaded = await _load(worker, model, threads)
        return await _embed(worker, model, loaded, rows)
    except WorkerRefusal as refusal:
        raise to_synapse_error(refusal) from refusal
    finally:
        await worker.stop()


async def _load(worker: Worker, model: RegisteredModel, threads: int) -> Loaded:
    message = Load("load-1", model.model_path, model.model_sha256, model.format, model.runtime_config(threads=threads))
    reply, _ = await worker.request(message, operation="load")
    assert isinstance(reply, Loaded)
    return reply


async def _embed(
    worker: Worker, model: RegisteredModel, loaded: Loaded, rows: Sequence[Sequence[int]]
) -> npt.NDArray[np.float32]:
    vectors = np.empty((len(rows), loaded.dims), np.float32)
    numbers = count(1)
    for group in group_rows([len(row) for row in rows], DEFAULT_POLICY, loaded.buckets):
        message = EmbedBatchRequest(
            req_id=f"embed-{next(numbers)}",
            model_ref=loaded.model_ref,
            pooling=model.pooling,
            normalize=model.normalize,
            items=[{"id": str(index), "n_tokens": len(rows[index])} for index in group],
        )
        ids = array("i", [token for index in group for token in rows[index]])
        reply, raw = await worker.request(message, ids.tobytes(), operation="embed")
        assert isinstance(reply, VectorsHeader)
        assert raw is not None
        vectors[group] = np.frombuffer(raw, "<f4").reshape(reply.n, reply.dims)
    return vectors
