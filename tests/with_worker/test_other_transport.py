"""Workers over another transport than Unix sockets: nothing in supervision asks more than ``supervision.transport``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.testing.gate import Gate
from synapse_host.testing.workers.event_loop_transport import LoopListener
from synapse_host.testing.workers.misbehaviour_cases import cases
from synapse_host.testing.workers.misbehaviour_matrix import Outcome, play_all
from synapse_host.testing.workers.running_worker import embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector
from synapse_host.worker_protocol.messages import Ping

CASES = {case.name: case for case in cases() if case.operation == "EMBED_BATCH"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """What a worker can do wrong while it embeds, over the other transport."""
    played = anyio.run(play_all, list(CASES.values()), tmp_path_factory.mktemp("matrix"), LoopListener)
    return {outcome.case.name: outcome for outcome in played}


@pytest.mark.parametrize("name", CASES)
def test_a_misbehaviour_ends_as_it_does_over_a_socket(outcomes: Mapping[str, Outcome], name: str) -> None:
    assert outcomes[name].problem is None


@pytest.mark.anyio
async def test_rows_of_every_size_come_back_whole(tmp_path: Path) -> None:
    before = LoopListener.accepted
    async with running(replace(stub_spec(tmp_path), listen=LoopListener)) as worker:
        assert LoopListener.accepted == before + 1
        # Larger than any buffer of the kernel, and than the frame from which memory is taken at once.
        model_ref = await load(worker, dims="400000")
        for rows in ([[1, 2, 3]], [[4], [5, 6]], [[7]]):
            assert await embed(worker, model_ref, *rows) == [stub_vector(row, 400_000) for row in rows]
        await worker.request(Ping("p"))


@pytest.mark.anyio
async def test_an_abandoned_reply_is_drained_before_the_next_request(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    spec = misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env, listen=LoopListener)
    async with running(spec) as worker:
        model_ref = await load(worker)
        async with anyio.create_task_group() as callers:
            callers.start_soon(embed, worker, model_ref, [1, 1])
            await gate.reached()
            callers.cancel_scope.cancel()
        gate.open()
        assert await embed(worker, model_ref, [5]) == [stub_vector([5], 4)]
