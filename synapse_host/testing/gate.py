"""Holds a child process at a point until the test says go, and tells the test that it got there. No one sleeps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import anyio

#: Seconds a child has to reach the gate.
_DEADLINE_S = 30.0


class Gate:
    """A FIFO the child reads to its end: opening it for writing succeeds only when the child stands before it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._held: IO[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What ``wait_at_gate`` of the misbehaving worker needs in its environment."""
        return {"SYNAPSE_GATE": str(self.path)}

    async def reached(self) -> None:
        """Wait until the child stands at the gate; raises ``TimeoutError``."""
        with anyio.fail_after(_DEADLINE_S):
            self._held = await anyio.to_thread.run_sync(self.path.open, "wb", abandon_on_cancel=True)

    def open(self) -> None:
        """Let the child pass."""
        assert self._held is not None, "no child has reached the gate"
        self._held.close()


async def first_words(fifo: Path) -> str:
    """What a child writes into ``fifo``, up to where it closes it; raises ``TimeoutError``."""
    with anyio.fail_after(_DEADLINE_S):
        return await anyio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)
