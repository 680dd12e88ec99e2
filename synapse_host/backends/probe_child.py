"""Run the describe-and-probe child within bounds of time and output; what it said is judged elsewhere.

The child is started from the event loop's own thread: on Linux it dies with the thread that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import MappingProxyType

import anyio
from anyio.abc import ByteReceiveStream, Process

from synapse_host.backends.backend_settings import setting_arguments
from synapse_host.backends.probe_report import MAX_REPORT_BYTES, PROBE_TIMEOUT_S, ChildOutcome, Ending
from synapse_host.hookspecs import BackendSettings

#: Bytes of the child's standard error that are kept.
STDERR_TAIL_BYTES = 8192
#: Seconds the pipes may stay open once the child is gone: a grandchild may hold them for ever.
_DRAIN_S = 1.0


def probe_command(backend: str, settings: BackendSettings = MappingProxyType({})) -> list[str]:
    """The command of the child. ``-P``: a file in the working directory must never be imported in a module's place."""
    return [sys.executable, "-P", "-m", "synapse_host.worker.probe", backend, *setting_arguments(settings)]


async def run_probe_child(
    backend: str,
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    command: Sequence[str] | None = None,
    settings: BackendSettings = MappingProxyType({}),
) -> ChildOutcome:
    """Run one child to its end or its limit; never raises for what the child does, and leaves no process behind."""
    try:
        process = await anyio.open_process(
            list(command or probe_command(backend, settings)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as problem:
        return ChildOutcome("not_started", None, b"", f"{type(problem).__name__}: {problem}")
    return await _Watch(process).until_end(timeout_s)


class _Watch:
    """Collects the output of one child and ends it when it passes a bound."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._answer = b""
        self._tail = b""
        self._overflowed = False
        self._open_pipes = 2

    async def until_end(self, timeout_s: float) -> ChildOutcome:
        """The outcome after exit, overflow or ``timeout_s`` seconds."""
        try:
            with anyio.move_on_after(timeout_s):
                await self._collect()
        finally:
            exit_code = self._process.returncode
            if exit_code is None or self._open_pipes:
                self._kill_group()
            with anyio.CancelScope(shield=True):
                await self._process.aclose()
        ending: Ending = "overflowed" if self._overflowed else "timed_out" if exit_code is None else "exited"
        return ChildOutcome(ending, exit_code, self._answer, self._tail.decode("utf-8", "replace"))

    async def _collect(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with anyio.create_task_group() as readers:
            readers.start_soon(self._read_answer, self._process.stdout, readers.cancel_scope)
            readers.start_soon(self._read_tail, self._process.stderr)
            await self._process.wait()
            readers.cancel_scope.deadline = anyio.current_time() + _DRAIN_S

    async def _read_answer(self, stream: ByteReceiveStream, everything: anyio.CancelScope) -> None:
        async for chunk in stream:
            self._answer += chunk
            if len(self._answer) > MAX_REPORT_BYTES:
                self._overflowed = True
                self._answer = self._answer[:MAX_REPORT_BYTES]
                everything.cancel()
        self._open_pipes -= 1

    async def _read_tail(self, stream: ByteReceiveStream) -> None:
        async for chunk in stream:
            self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
        self._open_pipes -= 1

    def _kill_group(self) -> None:
        """End the child and what it started: it leads a process group of its own."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        except (ProcessLookupError, PermissionError):
            # Gone by itself; macOS says "not permitted" of a group of zombies.
            return
