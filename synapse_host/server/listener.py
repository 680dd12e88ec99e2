"""The consumer socket: who may listen, who may connect, and how serving ends.

Order of a stop: the socket disappears, new requests are refused typed, admitted ones are awaited for
``server.drain_s`` seconds, then every connection closes.
"""

from __future__ import annotations

import errno
import importlib.metadata
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from synapse_host.direct_stream import GONE, DirectStream
from synapse_host.errors import EXCEPTIONS, QueueFull, StartRefused, SynapseError
from synapse_host.operations.registry import Registry
from synapse_host.server.envelope import encode_error
from synapse_host.server.ingress import IngressBudget
from synapse_host.server.peer import peer_uid
from synapse_host.server.session import Service, Session
from synapse_host.server.singleton import PRIVATE_FILE, clear_stale_socket, make_private_directory, only_host
from synapse_host.settings import Paths, Settings

OperatorIdentityUnavailable = EXCEPTIONS["operator_identity_unavailable"]

_log = logging.getLogger(__name__)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Seconds to wait before accepting again when the process is out of descriptors.
_ACCEPT_PAUSE_S = 0.1


@dataclass(slots=True)
class OpenConnections:
    """How many connections are open, those being turned away included."""

    count: int = 0


async def serve(
    settings: Settings,
    registry: Registry,
    *,
    module_generation: int,
    on_ready: Callable[[], None] | None = None,
    stop: anyio.Event,
) -> None:
    """Take the runtime directory and serve in it; see ``sole_host`` and ``serve_locked``."""
    with sole_host(settings.paths):
        await serve_locked(settings, registry, module_generation=module_generation, on_ready=on_ready, stop=stop)


@contextmanager
def sole_host(paths: Paths) -> Iterator[None]:
    """Be the only host of a runtime directory for the length of the block; take it before anything of the host's.

    Raises:
        StartRefused: another host serves the directory, or it cannot be made or locked.

    """
    make_private_directory(paths.lock_file.parent)
    with only_host(paths.lock_file):
        yield


async def serve_locked(
    settings: Settings,
    registry: Registry,
    *,
    module_generation: int,
    on_ready: Callable[[], None] | None = None,
    stop: anyio.Event,
    connections: OpenConnections | None = None,
) -> None:
    """Serve the methods of ``registry`` on the consumer socket until ``stop`` is set, then drain and close.

    ``on_ready`` is called once connections are accepted; ``connections`` is kept up to date. The caller is the
    ``sole_host``.

    Raises:
        StartRefused: a process without the lock serves the socket, or it cannot be made there.

    """
    path = settings.paths.host_socket
    make_private_directory(path.parent)
    clear_stale_socket(path)
    listener = await _listen(path)
    service = Service(
        registry,
        settings.server,
        module_generation,
        importlib.metadata.version("synapse-host"),
        time.monotonic,
        IngressBudget(settings.server.ingress_bytes),
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_Door(service, connections or OpenConnections()).accept_all, listener)
            if on_ready is not None:
                on_ready()
            await stop.wait()
            path.unlink(missing_ok=True)
            await _drain(service)
            tasks.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


async def _listen(path: Path) -> SocketListener:
    try:
        return await anyio.create_unix_listener(path, mode=PRIVATE_FILE)
    except OSError as error:
        raise StartRefused(f"{path} cannot be listened on: {error}; choose another SYNAPSE_HOME") from error


async def _drain(service: Service) -> None:
    service.drain.start()
    with anyio.move_on_after(service.limits.drain_s) as scope:
        await service.drain.wait_empty()
    if scope.cancelled_caught:
        _log.warning(
            "%d requests were unfinished %g s after the stop; their connections close",
            service.drain.open_requests,
            service.limits.drain_s,
        )


class _Door:
    """Lets peers in: the same user, up to the connection limit."""

    def __init__(self, service: Service, connections: OpenConnections) -> None:
        self._service = service
        self._connections = connections

    async def accept_all(self, listener: SocketListener) -> None:
        async with listener, anyio.create_task_group() as sessions:
            while True:
                try:
                    stream = await listener.accept()
                except (OSError, anyio.BrokenResourceError) as error:
                    # The library hides the system's refusal behind an error of its own.
                    refusal = error if isinstance(error, OSError) else error.__cause__
                    if getattr(refusal, "errno", None) not in _OUT_OF_DESCRIPTORS:
                        raise
                    _log.warning("cannot accept a connection: %s", refusal)
                    await anyio.sleep(_ACCEPT_PAUSE_S)
                    continue
                sessions.start_soon(self._receive_peer, stream)

    async def _receive_peer(self, stream: SocketStream) -> None:
        uid = peer_uid(stream.extra(SocketAttribute.raw_socket))  # noqa: S610
        direct = DirectStream(stream, stall_s=self._service.limits.stall_s)
        self._connections.count += 1
        try:
            async with aclosing(direct):
                refusal = self._refusal(uid)
                if refusal is not None:
                    await self._turn_away(direct, refusal)
                else:
                    await Session(direct, self._service, peer_uid=uid).run()
        except Exception:
            # One connection's fault must not end the others.
            _log.exception("a connection failed")
        finally:
            self._connections.count -= 1

    def _refusal(self, uid: int | None) -> SynapseError | None:
        if uid != os.getuid():
            who = "an unknown user" if uid is None else f"user {uid}"
            return OperatorIdentityUnavailable(f"the peer is {who} and this host serves user {os.getuid()} only")
        limit = self._service.limits.max_connections
        if self._connections.count > limit:
            return QueueFull(
                f"{limit} connections are open, which is the host's limit; close one or wait", channel=True
            )
        return None

    async def _turn_away(self, stream: DirectStream, refusal: SynapseError) -> None:
        _log.warning("connection refused: %s", refusal.message)
        try:
            generation, most = self._service.module_generation, self._service.limits.max_frame
            await stream.write(encode_error(None, refusal, module_generation=generation, max_frame=most))
        except GONE:
            _log.debug("the refused peer left before it could be told")
