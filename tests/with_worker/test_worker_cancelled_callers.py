"""Callers that go away: their replies are drained, their guards let go in time, the next caller gets its own."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.supervision.worker import Worker
from synapse_host.testing.gate import Gate, first_words
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.workers.running_worker import embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector

pytestmark = pytest.mark.anyio


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


async def ask_within(scope: anyio.CancelScope, worker: Worker, model_ref: str, drained: list[str]) -> None:
    with scope:
        await embed(worker, model_ref, [1, 1], req_id="embed-given-up", drained=lambda: drained.append("drained"))


async def test_a_cancelled_caller_never_leaves_a_stale_reply(tmp_path: Path, gate: Gate) -> None:
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as worker:
        model_ref = await load(worker)
        scope, drained, served = anyio.CancelScope(), [], anyio.Event()

        async def next_caller() -> None:
            assert await embed(worker, model_ref, [5], req_id="embed-next") == [stub_vector([5], 4)]
            served.set()

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask_within, scope, worker, model_ref, drained)
            await gate.reached()
            scope.cancel()
            callers.start_soon(next_caller)
            await anyio.wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert drained == []
            assert not served.is_set()
            gate.open()
        assert drained == ["drained"]
        assert worker.alive


async def test_a_request_cancelled_in_the_queue_is_never_sent(tmp_path: Path, gate: Gate) -> None:
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as worker:
        model_ref = await load(worker)
        first, second = anyio.CancelScope(), anyio.CancelScope()
        drained: list[str] = []
        async with anyio.create_task_group() as callers:
            callers.start_soon(ask_within, first, worker, model_ref, [])
            await gate.reached()
            callers.start_soon(ask_within, second, worker, "no such model", drained)
            await anyio.wait_all_tasks_blocked()
            second.cancel()
            await anyio.wait_all_tasks_blocked()
            assert drained == ["drained"]
            gate.open()
        assert not first.cancelled_caught
        assert worker.alive


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    os.mkfifo(note)
    program = f"import os, pathlib; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); os.read(os.pipe()[0], 1)"
    endless = replace(stub_spec(tmp_path), command=(sys.executable, "-c", program))
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as starting:
        starting.start_soon(Worker.start, endless, tasks)
        pid = int(await first_words(note))
        starting.cancel_scope.cancel()
    assert wait_until_gone(pid)
    assert not endless.socket_path.exists()
