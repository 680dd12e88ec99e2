"""``synapse-host serve``: the daemon in the foreground, logging to standard error, stopped by a signal."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable

import anyio

from synapse_host.host import run_host
from synapse_host.settings import Settings

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def serve_foreground(settings: Settings, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain and return; a second signal ends at once.

    Raises what stopped the host as it was raised, not wrapped in the groups of the tasks it passed through.
    """
    logging.basicConfig(stream=sys.stderr, level=settings.log.level.upper(), format=_FORMAT)
    try:
        anyio.run(_serve, settings, on_ready)
    except BaseExceptionGroup as group:
        raise _only_cause(group) from None


async def _serve(settings: Settings, on_ready: Callable[[], None]) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope)
        await run_host(settings, stop=stop, on_ready=on_ready)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            if stop.is_set():
                scope.cancel()
                return
            logging.getLogger("synapse_host").info("stopping on %s", signal.Signals(number).name)
            stop.set()


def _only_cause(fault: BaseException) -> BaseException:
    while isinstance(fault, BaseExceptionGroup) and len(fault.exceptions) == 1:
        fault = fault.exceptions[0]
    return fault
