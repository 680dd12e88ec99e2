"""The real worker and the host's supervision with no socket between them: both ends of a transport can be replaced."""

from __future__ import annotations

import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from synapse_host.supervision.launch import Launched, launch
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.running_host import python_path
from synapse_host.testing.workers.fake_engine import FAKE_ENGINE, TRICKS, load_request
from synapse_host.testing.workers.pipe_transport import PipeListener
from synapse_host.testing.workers.running_worker import PATIENCE_S, embed, running
from synapse_host.worker.hang_up import EXIT_ORPHANED
from synapse_host.worker_protocol.codec import decode_response, encode
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Loaded, Ping

pytestmark = pytest.mark.anyio

STUCK = next(token for token, trick in TRICKS.items() if trick == "never returns, without holding the interpreter")


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    site = tmp_path / "site"
    site.mkdir()
    install_backend(site, "fake", FAKE_ENGINE)
    return WorkerSpec(
        "fake",
        "synapse-fake-engine-m",
        tmp_path / "w" / "pipe",
        command=(sys.executable, "-P", "-m", "synapse_host.testing.workers.pipe_transport", "fake"),
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
        extra_env=python_path(site),
        listen=PipeListener,
    )


async def loaded(worker: Worker, folder: Path) -> str:
    reply, _ = await worker.request(load_request(folder), operation="load")
    assert isinstance(reply, Loaded)
    return reply.model_ref


async def test_a_whole_life(spec: WorkerSpec, tmp_path: Path) -> None:
    before = PipeListener.accepted
    async with running(spec) as worker:
        assert PipeListener.accepted == before + 1
        assert list((tmp_path / "w").iterdir()) == [], "the names of the pipes outlive the handshake"
        model_ref = await loaded(worker, tmp_path)
        # More than a pipe holds, in both directions.
        rows = [[5, 6, place % 9 + 20] for place in range(9000)]
        vectors = await embed(worker, model_ref, *rows)
        assert [(vector[0], vector[2]) for vector in vectors] == [(3.0, float(row[-1])) for row in rows]
        with pytest.raises(WorkerRefusal, match="another"):
            await embed(worker, "another", [1])
        await worker.request(Ping("ping-1"), operation="ping")


@asynccontextmanager
async def greeted(spec: WorkerSpec) -> AsyncIterator[Launched]:
    async with anyio.create_task_group() as tasks:
        worker = await launch(spec, tasks)
        try:
            yield worker
        finally:
            worker.channel.close()
            worker.process.kill()
            await worker.process.exited.wait()


async def ended(worker: Launched) -> int | None:
    with anyio.fail_after(PATIENCE_S):
        await worker.process.exited.wait()
    return worker.process.returncode


async def test_the_end_of_the_host_while_idle_is_an_orderly_exit(spec: WorkerSpec) -> None:
    async with greeted(spec) as worker:
        worker.channel.close()
        assert await ended(worker) == 0


async def test_the_end_of_the_host_in_a_request_leaves_no_orphan(spec: WorkerSpec, tmp_path: Path) -> None:
    async with greeted(spec) as worker:
        worker.channel.send(encode(load_request(tmp_path)))
        reply = decode_response(await worker.channel.receive())
        assert isinstance(reply, Loaded)
        message = EmbedBatchRequest("embed-1", reply.model_ref, "mean", True, [{"id": "a", "n_tokens": 1}])
        worker.channel.send(encode(message), struct.pack("<i", STUCK))
        with anyio.fail_after(PATIENCE_S):
            while "stuck" not in worker.process.output_tail():
                await anyio.lowlevel.checkpoint()
        worker.channel.close()
        assert await ended(worker) == EXIT_ORPHANED
