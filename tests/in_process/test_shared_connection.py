"""One connection of the asynchronous client, shared by many tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from synapse_host.client.async_client import AsyncClient
from synapse_host.client.faults import ConnectionLost
from synapse_host.testing.fake_methods import echo_method
from synapse_host.testing.in_process_host import RunningHost, in_process_host
from synapse_host.testing.raw_peer import DEADLINE_S

pytestmark = pytest.mark.anyio
LARGE = "x" * 3_000_000


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RunningHost]:
    async with in_process_host(tmp_path, [echo_method()]) as running:
        yield running


async def test_large_requests_of_many_tasks_go_out_one_after_the_other(host: RunningHost) -> None:
    answered = []

    async def echo(number: int) -> None:
        answer = await client.call("fake.echo", {"value": f"{number}{LARGE}"})
        answered.append(answer["value"][0])

    with anyio.fail_after(DEADLINE_S):
        async with await AsyncClient.connect(host.socket) as client, anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(echo, number)
    assert sorted(answered) == list("012345")


async def test_a_connection_that_is_gone_is_told_to_each_with_its_own_way_there(host: RunningHost) -> None:
    client = await AsyncClient.connect(host.socket)
    await client.aclose()
    lengths = set()
    for _ in range(3):
        with pytest.raises(ConnectionLost) as lost:
            await client.call("fake.echo", {})
        lengths.add(len(lost.traceback))
    assert len(lengths) == 1
