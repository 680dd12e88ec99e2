"""Vectors, scores or text of token rows from a worker that lives only for the run."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from synapse_host.certification.step_count import Count, counter, uncounted
from synapse_host.errors import InvalidRequest
from synapse_host.hookspecs import CheckNumbers
from synapse_host.lanes.batching import group_rows
from synapse_host.lanes.neural_engine_models import admits_shapes
from synapse_host.models.registered_model import DEFAULT_POLICY, RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.worker import Worker
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Generate,
    Load,
    Loaded,
    RerankSequences,
    SelfCheck,
    SelfChecked,
    Text,
    VectorsHeader,
)

Numbers = npt.NDArray[np.float32]
Texts = list[list[int]]
Made = TypeVar("Made")
_Run = Callable[[Worker, RegisteredModel, Loaded], Awaitable[Made]]
StartWorker = Callable[[RegisteredModel], Awaitable[Worker]]


async def vectors_of(
    start_worker: StartWorker,
    model: RegisteredModel,
    rows: Sequence[Sequence[int]],
    *,
    threads: int,
    count: Count = uncounted,
) -> npt.NDArray[np.float32]:
    """Load ``model`` in a fresh worker, embed ``rows``, stop the worker; float32 [rows, dims] in the order given.

    ``count`` is told how many rows are done.

    Raises:
        SynapseError: the worker could not be started, refused, or died.

    """
    return await _in_worker(start_worker, model, threads, partial(_embed, rows=rows, done=counter(count, len(rows))))


async def scores_of(
    start_worker: StartWorker,
    model: RegisteredModel,
    rows: Sequence[Sequence[int]],
    *,
    threads: int,
    count: Count = uncounted,
) -> npt.NDArray[np.float32]:
    """The same for composed pairs: raw scores, float32 [rows]."""
    return await _in_worker(start_worker, model, threads, partial(_rerank, rows=rows, done=counter(count, len(rows))))


async def texts_of(
    start_worker: StartWorker,
    model: RegisteredModel,
    prompts: Sequence[Sequence[int]],
    most: int,
    count: Count = uncounted,
) -> Texts:
    """The same for prompts: the token ids generated after each, at most ``most``."""
    return await _in_worker(start_worker, model, 0, partial(_generate, prompts=prompts, most=most, count=count))


async def checks_of(start_worker: StartWorker, model: RegisteredModel, *, threads: int) -> list[CheckNumbers] | None:
    """What the backend of ``model`` computes to be checked, with ``model`` loaded; None where it has no self-check."""
    try:
        return await _in_worker(start_worker, model, threads, _self_check)
    except InvalidRequest as refused:
        if (refused.details or {}).get("reason") == "unsupported_request":
            return None
        raise


async def _in_worker(start_worker: StartWorker, model: RegisteredModel, threads: int, run: _Run[Made]) -> Made:
    worker = await start_worker(model)
    try:
        loaded = await _load(worker, model, threads)
        return await run(worker, model, loaded)
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
    worker: Worker, model: RegisteredModel, loaded: Loaded, rows: Sequence[Sequence[int]], done: Callable[[int], None]
) -> npt.NDArray[np.float32]:
    vectors = np.empty((len(rows), loaded.dims), np.float32)
    numbers = count(1)
    for group in _groups(rows, model, loaded):
        message = EmbedBatchRequest(
            req_id=f"embed-{next(numbers)}",
            model_ref=loaded.model_ref,
            pooling=model.pooling,
            normalize=model.normalize,
            items=[{"id": str(index), "n_tokens": len(rows[index])} for index in group],
        )
        reply, raw = await worker.request(message, _joined(rows, group), operation="embed")
        assert isinstance(reply, VectorsHeader)
        assert raw is not None
        vectors[group] = np.frombuffer(raw, "<f4").reshape(reply.n, reply.dims)
        done(len(group))
    return vectors


async def _self_check(worker: Worker, model: RegisteredModel, loaded: Loaded) -> list[CheckNumbers]:
    reply, raw = await worker.request(SelfCheck("check-1", loaded.model_ref), operation="self_check")
    assert isinstance(reply, SelfChecked)
    values, begin = np.frombuffer(raw or b"", "<f4"), 0
    checks = []
    for head in reply.checks:
        end = begin + head["rows"] * head["width"]
        numbers = values[begin:end].reshape(head["rows"], head["width"])
        begin = end
        checks.append(CheckNumbers(head["kind"], head["subject"], head["label"], numbers, head["scale"], head["fault"]))
    return checks


async def _rerank(
    worker: Worker, model: RegisteredModel, loaded: Loaded, rows: Sequence[Sequence[int]], done: Callable[[int], None]
) -> Numbers:
    scores = np.empty(len(rows), np.float32)
    numbers = count(1)
    for group in _groups(rows, model, loaded):
        message = RerankSequences(
            req_id=f"rerank-{next(numbers)}",
            model_ref=loaded.model_ref,
            sequences=[{"n_tokens": len(rows[index])} for index in group],
        )
        _, raw = await worker.request(message, _joined(rows, group), operation="rerank")
        assert raw is not None
        scores[group] = np.frombuffer(raw, "<f4")
        done(len(group))
    return scores


async def _generate(
    worker: Worker, model: RegisteredModel, loaded: Loaded, prompts: Sequence[Sequence[int]], most: int, count: Count
) -> Texts:
    made: Texts = []
    for number in range(len(prompts)):
        message = Generate(f"generate-{number}", loaded.model_ref, most)
        reply, _ = await worker.request(message, _joined(prompts, [number]), operation="generate")
        assert isinstance(reply, Text)
        made.append(list(reply.generated_token_ids or []))
        count(len(made), len(prompts))
    return made


def _groups(rows: Sequence[Sequence[int]], model: RegisteredModel, loaded: Loaded) -> list[list[int]]:
    return group_rows([len(row) for row in rows], DEFAULT_POLICY, loaded.buckets, alike=admits_shapes(model))


def _joined(rows: Sequence[Sequence[int]], group: Sequence[int]) -> bytes:
    return array("i", [token for index in group for token in rows[index]]).tobytes()
