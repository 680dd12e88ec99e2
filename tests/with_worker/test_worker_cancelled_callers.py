"""Callers that go away: their replies are drained, their guards let go in time, the next caller gets its own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.supervision.worker import Worker
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.running_worker import embed, load, misbehaving_spec, running
from synapse_host.testing.stub_worker import stub_vector

pytestmark = pytest.mark.anyio


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


async def in_the_request(gate: Path) -> Any:
    """The gate's open writing end; that it could be opened shows that the worker stands before it."""
    with anyio.fail_after(20):
        return await anyio.to_thread.run_sync(open, gate, "wb", abandon_on_cancel=True)


async def _expire(worker: Worker, model_ref: str, scope: anyio.CancelScope, drained: list[str]) -> None:
    message, raw = batch(model_ref, [1, 1, 1], req_id="embed-abandoned")
    with scope:
        await worker.request(message, raw, operation="embed", drained=lambda: drained.append("drained"))


async def test_a_cancelled_caller_never_leaves_a_stale_reply(tmp_path: Path, gate: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env={"SYNAPSE_GATE": str(gate)})) as worker:
        model_ref = await load(worker)
        scope, drained, served = anyio.CancelScope(), [], anyio.Event()

        async def next_caller() -> None:
            assert await embed(worker, model_ref, [5], req_id="embed-next") == [stub_vector([5], 4)]
            served.set()

        async with anyio.create_task_group() as callers:
            callers.start_soon(_expire, worker, model_ref, scope, drained)
            held = await in_the_request(gate)
            scope.cancel()
            callers.start_soon(next_caller)
            await anyio.wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert drained == []
            assert not served.is_set()
            held.close()
        assert drained == ["drained"]
        assert worker.alive


async def test_a_request_cancelled_in_the_queue_is_never_sent(tmp_path: Path, gate: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env={"SYNAPSE_GATE": str(gate)})) as worker:
        model_ref = await load(worker)
        first, second = anyio.CancelScope(), anyio.CancelScope()
        drained: list[str] = []
        async with anyio.create_task_group() as callers:
            callers.start_soon(_expire, worker, model_ref, first, [])
            held = await in_the_request(gate)
            callers.start_soon(_expire, worker, "no such model", second, drained)
            await anyio.wait_all_tasks_blocked()
            second.cancel()
            await anyio.wait_all_tasks_blocked()
            assert drained == ["drained"]
            held.close()
        assert not first.cancelled_caught
        assert worker.alive


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"import os,pathlib,threading; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); "
    endless = replace(spec, command=(sys.executable, "-c", f"{program}threading.Event().wait(600)"))
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as starting:
        starting.start_soon(Worker.start, endless, tasks)
        with anyio.fail_after(20):
            while not (note.exists() and note.read_text()):
                await anyio.lowlevel.checkpoint()
        starting.cancel_scope.cancel()
    assert wait_until_gone(int(note.read_text()))
