"""What an exchange with a worker asks of the event loop: the part of its time that no machine makes quicker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from synapse_host.testing.workers.running_worker import running, stub_spec
from synapse_host.worker_protocol.messages import Ping

pytestmark = pytest.mark.anyio
EXCHANGES = 50
#: One in which the reply comes, one in which its caller goes on; a few more for what else the loop has to do.
TURNS, OTHERS = 2, 10


async def test_an_exchange_takes_two_turns_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = asyncio.get_running_loop()
    select, turns = loop._selector.select, 0

    def counted(timeout: float | None = None) -> Any:
        nonlocal turns
        turns += 1
        return select(timeout)

    async with running(stub_spec(tmp_path)) as worker:
        await worker.request(Ping("first"))
        monkeypatch.setattr(loop._selector, "select", counted)
        for _ in range(EXCHANGES):
            # Its answer is one frame: two that are written one after the other may come in two turns.
            await worker.request(Ping("next"))
        monkeypatch.undo()
    print(f"{turns} turns for {EXCHANGES} exchanges")
    assert turns <= TURNS * EXCHANGES + OTHERS
