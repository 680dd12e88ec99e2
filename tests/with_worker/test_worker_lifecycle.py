"""A worker that behaves, from its start to every way of stopping it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.testing.gate import Gate
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.workers.running_worker import details_of, embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector
from synapse_host.worker_protocol.messages import Ping, Pong, Unload, Unloaded

pytestmark = pytest.mark.anyio


async def test_a_whole_life(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        assert worker.hello.engine["engine"] == "stub"
        assert worker.alive
        model_ref = await load(worker, dims="5")
        rows = [[1, 2, 3], [9], [7, 7]]
        assert await embed(worker, model_ref, *rows) == [stub_vector(row, 5) for row in rows]
        pong, raw = await worker.request(Ping("ping-1"), operation="ping")
        assert (pong, raw) == (Pong("ping-1", 1, 1), None)
        gone, _ = await worker.request(Unload("unload-1", model_ref), operation="unload")
        assert gone == Unloaded("unload-1")
        await worker.stop()
        assert worker.fault is not None
        assert worker.fault.reason == "stopped"
        assert not worker.alive


async def test_a_refusal_is_typed_and_the_worker_serves_on(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        with pytest.raises(WorkerRefusal) as refused:
            await embed(worker, "nothing", [1, 2])
        assert refused.value.code == "model_not_loaded"
        model_ref = await load(worker)
        assert await embed(worker, model_ref, [1]) == [stub_vector([1], 4)]


async def test_concurrent_requests_get_their_own_replies_in_turn(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        model_ref = await load(worker)
        order: list[int] = []

        async def ask(number: int) -> None:
            vectors = await embed(worker, model_ref, [number, number], req_id=f"embed-{number}")
            assert vectors == [stub_vector([number, number], 4)]
            order.append(number)

        async with anyio.create_task_group() as callers:
            for number in range(50):
                callers.start_soon(ask, number)
        assert order == sorted(order)


async def test_large_frames_pass_both_ways(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        model_ref = await load(worker, dims="50000")
        row = list(range(200_000))
        assert await embed(worker, model_ref, row, [1]) == [stub_vector(row, 50000), stub_vector([1], 50000)]


@pytest.mark.parametrize(
    ("kind", "ending"), [("ignores_shutdown", "signal SIGTERM"), ("ignores_sigterm", "signal SIGKILL")]
)
async def test_stop_insists_until_the_worker_is_gone(tmp_path: Path, kind: str, ending: str) -> None:
    async with running(misbehaving_spec(tmp_path, kind)) as worker:
        await load(worker)
        # Long enough for what ignores SIGTERM to say so, on a busy machine too.
        await worker.stop(drain_s=0.1, terminate_s=3.0 if kind == "ignores_sigterm" else 20.0)
        with pytest.raises(EngineCrashed) as crashed:
            await worker.request(Ping("ping-1"), operation="ping")
        assert details_of(crashed.value)["exit"] == ending
        assert ("SIGTERM ignored" in worker.output_tail()) == (kind == "ignores_sigterm")


async def test_stop_serves_what_was_asked_before(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as worker:
        model_ref = await load(worker)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await embed(worker, model_ref, [3]))

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask)
            await gate.reached()
            callers.start_soon(worker.stop)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(EngineCrashed, match="is stopping"):
                await worker.request(Ping("ping-1"), operation="ping")
            gate.open()
        assert answers == [[stub_vector([3], 4)]]
        assert worker.closed.is_set()


async def test_stop_ends_a_request_that_never_returns(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "silence")) as worker:
        model_ref = await load(worker)
        ended: list[EngineCrashed] = []

        async def ask() -> None:
            with pytest.raises(EngineCrashed) as crashed:
                await embed(worker, model_ref, [3])
            ended.append(crashed.value)

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await worker.stop(drain_s=0.1, terminate_s=20.0)
        assert [details_of(error)["reason"] for error in ended] == ["stopped"]


async def test_cancelling_the_hosts_tasks_kills_the_worker(tmp_path: Path) -> None:
    async def live(tasks: TaskGroup) -> int:
        worker = await Worker.start(stub_spec(tmp_path), tasks)
        await load(worker)
        tasks.cancel_scope.cancel()
        return worker.pid

    async with anyio.create_task_group() as tasks:
        pid = await live(tasks)
    assert wait_until_gone(pid)


def test_a_killed_host_takes_its_worker_along(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import anyio, sys
        from pathlib import Path
        from synapse_host.supervision.worker import Worker
        from synapse_host.supervision.worker_spec import WorkerSpec

        async def main():
            command = [sys.executable, "-P", "-m", "synapse_host.testing.workers.stub_worker", "stub"]
            spec = WorkerSpec("stub", "w", Path({str(tmp_path / "s.sock")!r}), command=command, accept_deadline_s=60)
            async with anyio.create_task_group() as tasks:
                worker = await Worker.start(spec, tasks)
                print(worker.pid, flush=True)
                await worker.closed.wait()

        anyio.run(main)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        host.kill()
    assert wait_until_gone(pid)


async def test_a_process_that_cannot_be_ended_still_lets_its_waiters_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        process = worker._process
        end = process.end

        async def fail_after_ending(*, own_end: bool) -> None:
            await end(own_end=own_end)
            raise OSError("planted")

        monkeypatch.setattr(process, "end", fail_after_ending)
        os.kill(worker.pid, signal.SIGKILL)
        with anyio.fail_after(30):
            await worker.closed.wait()
        with pytest.raises(EngineCrashed):
            await embed(worker, "m", [1])
