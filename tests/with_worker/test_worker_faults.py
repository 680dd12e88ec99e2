"""Whatever a worker does in the middle of a request, the caller gets a typed crash with what a diagnosis needs."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.testing.workers.running_worker import details_of, embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector
from synapse_host.testing.workers.stub_lane import until
from synapse_host.worker_protocol.messages import Ping

pytestmark = pytest.mark.anyio

#: A window that a silent worker passes soon.
IMPATIENT = SilenceWindows(long_s=60.0, inference_s=0.3)


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        ("exits_on_request", "exited", "closed the connection"),
        ("exits_mid_reply", "exited", "closed the connection"),
        ("partial_frame", "exited", "10 bytes of an unfinished frame"),
        ("closes_socket", "exited", "closed the connection"),
        ("oversized_frame", "protocol_fault", "4294967295"),
        ("stalling_progress", "protocol_fault", "completed 2 after 2"),
        ("foreign_progress", "protocol_fault", "'embed-0'"),
        ("backward_phase", "protocol_fault", "went back"),
        ("progress_inside", "protocol_fault", "the frame after VECTORS"),
        ("wrong_request_id", "protocol_fault", "'embed-0'"),
        ("wrong_reply", "protocol_fault", "PONG answers EMBED_BATCH"),
        ("wrong_rows", "protocol_fault", "2 rows for a batch of 1"),
        ("short_vectors", "protocol_fault", "has 12 bytes"),
        ("unreadable_request", "protocol_fault", "no idea"),
    ],
)
async def test_a_broken_exchange_is_a_typed_crash(tmp_path: Path, kind: str, reason: str, said: str) -> None:
    async with running(misbehaving_spec(tmp_path, kind)) as worker:
        model_ref = await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [1, 2])
        assert details_of(crashed.value)["reason"] == reason
        assert said in crashed.value.message
        assert worker.closed.is_set()
        with pytest.raises(EngineCrashed, match=r"synapse-stub-m"):
            await worker.request(Ping("ping-1"), operation="ping")


async def test_a_crash_carries_exit_and_output_tail(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "exits_on_request")) as worker:
        model_ref = await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [1])
        details = details_of(crashed.value)
        assert details["worker_id"] == "synapse-stub-m"
        assert details["exit"] == "status 5"
        assert "stdout: assertion n_tokens > 0 failed\n" in details["output_tail"]
        assert "stderr: about to abort\n" in details["output_tail"]


async def test_who_asks_while_a_dead_worker_is_buried_is_told_how_it_ended(tmp_path: Path) -> None:
    # It closes its connection and stays, so its burial lasts as long as its own end is waited for.
    async with running(misbehaving_spec(tmp_path, "closes_socket")) as worker:
        model_ref = await load(worker)
        told: list[str] = []

        async def ask() -> None:
            with pytest.raises(EngineCrashed) as crashed:
                await embed(worker, model_ref, [1])
            told.append(details_of(crashed.value)["exit"])

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask)
            await until(lambda: worker.fault is not None)
            assert not worker.closed.is_set()
            await ask()
        assert told == ["signal SIGKILL"] * 2


async def test_an_exit_is_noticed_though_another_process_holds_the_connection(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "leaves_a_holder")) as worker:
        model_ref = await load(worker)
        with anyio.fail_after(30), pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [1])
        assert details_of(crashed.value)["exit"] == "status 8"


async def test_a_worker_that_never_stops_talking_does_not_keep_the_host_from_stopping_it(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "floods")) as worker:
        model_ref = await load(worker)
        with anyio.move_on_after(0.2) as deadline:
            await embed(worker, model_ref, [1])
        assert deadline.cancelled_caught
        await worker.stop(drain_s=0.1)
        assert len(worker.output_tail()) > 1000


async def test_an_abort_is_told_by_its_signal(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "aborts")) as worker:
        model_ref = await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [1])
        assert details_of(crashed.value)["exit"] == "signal SIGABRT"


async def test_a_reply_no_one_asked_for_ends_the_worker_not_the_next_request_s_truth(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "replies_twice")) as worker:
        model_ref = await load(worker)
        assert await embed(worker, model_ref, [1], req_id="embed-1") == [stub_vector([1], 4)]
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [2], req_id="embed-2")
        assert details_of(crashed.value)["reason"] == "protocol_fault"


async def test_everyone_waiting_is_told_of_the_one_fault(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "exits_on_request")) as worker:
        model_ref = await load(worker)
        told: list[EngineCrashed] = []

        async def ask(number: int) -> None:
            with pytest.raises(EngineCrashed) as crashed:
                await embed(worker, model_ref, [number], req_id=f"embed-{number}")
            told.append(crashed.value)

        async with anyio.create_task_group() as callers:
            for number in range(5):
                callers.start_soon(ask, number)
        assert len(told) == 5
        assert len({id(error) for error in told}) == 5
        assert {details_of(error)["exit"] for error in told} == {"status 5"}


async def test_silence_past_the_window_kills(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "silence", silence=IMPATIENT)) as worker:
        model_ref = await load(worker)
        with pytest.raises(EngineCrashed, match=r"no completed work for 0\.3 s") as crashed:
            await embed(worker, model_ref, [1])
        assert details_of(crashed.value)["reason"] == "silence"
        assert details_of(crashed.value)["exit"] == "signal SIGKILL"


async def test_death_while_idle_is_noticed(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        os.kill(worker.pid, 9)
        with anyio.fail_after(30):
            await worker.closed.wait()
        assert not worker.alive
        assert worker.fault is not None
        assert worker.fault.reason == "exited"
