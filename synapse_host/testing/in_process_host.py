"""The real server on a real socket in the test's own event loop, with handlers of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from synapse_host.operations.registry import Method, Registry
from synapse_host.server.listener import serve
from synapse_host.settings import Settings, load_settings
from synapse_host.testing.raw_peer import DEADLINE_S, RawPeer


@dataclass(frozen=True, slots=True)
class RunningHost:
    """A host that accepts connections; ``stop`` begins its graceful stop, ``stopped`` is set after it."""

    settings: Settings
    stop: anyio.Event
    stopped: anyio.Event
    peers: list[RawPeer] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where to connect."""
        return self.settings.paths.host_socket

    async def peer(self) -> RawPeer:
        """A new bare connection, closed with the host at the latest."""
        peer = await RawPeer.connect(self.socket)
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def in_process_host(
    home: Path, methods: Iterable[Method], settings: Mapping[str, str] | None = None, *, module_generation: int = 7
) -> AsyncIterator[RunningHost]:
    """Serve ``methods`` below ``home``; ``settings`` are ``SYNAPSE_…`` variables."""
    loaded = load_settings({"SYNAPSE_HOME": str(home), **(settings or {})})
    host = RunningHost(loaded, anyio.Event(), anyio.Event())
    ready = anyio.Event()

    async def run() -> None:
        await serve(loaded, Registry(methods), module_generation=module_generation, on_ready=ready.set, stop=host.stop)
        host.stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(DEADLINE_S):
            await ready.wait()
        try:
            yield host
        finally:
            host.stop.set()
            with anyio.CancelScope(shield=True), anyio.fail_after(DEADLINE_S):
                for peer in host.peers:
                    await peer.close()
                await host.stopped.wait()
