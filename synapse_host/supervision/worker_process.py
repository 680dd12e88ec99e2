"""The handle of one worker's process: its birth, its output, its end.

Only ever spawned from the event loop's own thread: on Linux a worker dies with the *thread* that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import anyio
from anyio.abc import Process, TaskGroup

from synapse_host.supervision.log_ring import LogRing
from synapse_host.supervision.output_pipe import OutputPipe

#: Hears the name of an output stream and lines that were printed to it.
Printed = Callable[[str, list[bytes]], None]
#: Seconds a killed process may take to be reaped before its exit is reported as unknown.
_REAP_S = 5.0
#: Seconds a worker that closed its connection gets to exit by itself.
_OWN_END_S = 1.0
#: Seconds its output pipes may stay open after that: a grandchild may hold them for ever.
_DRAIN_S = 0.5


class WorkerProcess:
    """A running child in a process group of its own. It is watched and read in the task group it was given.

    ``exited`` is set once it is reaped. When the task group is cancelled the whole process group is killed.
    """

    def __init__(self, process: Process, stdout: OutputPipe, stderr: OutputPipe, printed: Printed | None) -> None:
        self._process = process
        self._printed = printed
        self._outputs = {"stdout": stdout, "stderr": stderr}
        self._ring = LogRing()
        self._drained = anyio.Event()
        self.exited = anyio.Event()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        worker_id: str,
        extra_env: Mapping[str, str],
        tasks: TaskGroup,
        printed: Printed | None = None,
        stdin: int | None = None,
    ) -> WorkerProcess:
        """Start ``command``, with ``stdin`` or nothing as its standard input; ``printed`` hears each stream's lines.

        Raises:
            OSError: the system refuses.

        """
        with contextlib.ExitStack() as opened:
            stdout, stderr = (opened.enter_context(contextlib.closing(OutputPipe())) for _ in range(2))
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=stdout.write_end,
                stderr=stderr.write_end,
                # The environment is handed on whole, not read: libraries of the worker expect theirs.
                env={**os.environ, **extra_env, "SYNAPSE_WORKER_ID": worker_id},
                # A Ctrl-C in the host's terminal must reach the host alone, which drains its workers itself.
                start_new_session=True,
            )
            opened.pop_all()
        stdout.close_write_end()
        stderr.close_write_end()
        handle = cls(process, stdout, stderr, printed)
        tasks.start_soon(handle._watch)
        return handle

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None until it is reaped."""
        return self._process.returncode

    def output_tail(self) -> str:
        """The last 8 KiB of both output streams, each line tagged."""
        return self._ring.tail()

    def terminate(self) -> None:
        """Ask the worker to end."""
        if self.returncode is None:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker and whatever it started."""
        if not self.exited.is_set():
            self._signal(signal.SIGKILL)

    async def end(self, *, own_end: bool) -> None:
        """Kill what still runs, then wait, within bounds, until it is reaped and its last output is in the ring.

        ``own_end`` says that the worker seems to be ending by itself: it gets a moment to do so, so that the exit
        reported is its own and not our SIGKILL.
        """
        if own_end:
            with anyio.move_on_after(_OWN_END_S):
                await self.exited.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S):
            await self._drained.wait()

    async def _watch(self) -> None:
        try:
            async with anyio.create_task_group() as readers:
                for name, pipe in self._outputs.items():
                    readers.start_soon(self._read, name, pipe)
                await self._process.wait()
                # Whatever the worker started goes with it.
                self._signal(signal.SIGKILL)
                self.exited.set()
                readers.cancel_scope.deadline = anyio.current_time() + _DRAIN_S
        finally:
            await self._reap()

    async def _reap(self) -> None:
        """The end of the worker when the task group is cancelled; after an exit there is nothing left to do."""
        self.kill()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_REAP_S):
            await self._process.wait()
        self.exited.set()
        self._drained.set()

    async def _read(self, name: str, pipe: OutputPipe) -> None:
        try:
            while chunk := await pipe.read():
                self._tell(name, self._ring.append(name, chunk))
        finally:
            pipe.close()
            self._tell(name, self._ring.end(name))

    def _tell(self, name: str, lines: list[bytes]) -> None:
        if self._printed is not None:
            self._printed(name, lines)

    def _signal(self, number: signal.Signals) -> None:
        # Not Process.send_signal: it may reap the child behind the event loop's back, which then reports status 255.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
