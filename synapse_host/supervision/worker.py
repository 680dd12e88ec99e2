"""One running worker as the host sees it: requests in, replies out, one at a time, and one end for everyone.

``conversation`` carries out the exchanges in the order they came and reads each reply to its last byte, whatever has
become of the caller, who may be cancelled at any moment. One task waits for its end and buries the worker: kill, reap,
collect the output, fail whoever waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.framing import Buffer
from synapse_host.supervision.conversation import Conversation
from synapse_host.supervision.exchange import Exchange, Reply
from synapse_host.supervision.launch import Launched, launch
from synapse_host.supervision.worker_fault import WorkerFault, crash_error, describe_exit
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.time_limits import TimeLimits
from synapse_host.worker_protocol.messages import Hello, Loaded, Message, Ping, Pong, Shutdown, Unload

#: Seconds a stopping worker gets for the request in hand and its exit, and then for SIGTERM, before SIGKILL.
DRAIN_S = 10.0
TERMINATE_S = 2.0

_log = logging.getLogger(__name__)


class Worker:
    """A started worker; made by ``start``. ``closed`` is set once it is dead, reaped and everyone is told."""

    def __init__(self, spec: WorkerSpec, launched: Launched) -> None:
        self.spec = spec
        self.hello: Hello = launched.hello
        self.closed = anyio.Event()
        self.fault: WorkerFault | None = None
        self._process = launched.process
        self._stream = launched.stream
        self._channel = launched.channel
        self._dims: dict[str, int] = {}
        self._stopping = False
        self._limits = TimeLimits()
        self._ended: asyncio.Future[WorkerFault] = asyncio.get_running_loop().create_future()
        self._conversation = Conversation(
            launched.channel,
            spec.silence,
            str(launched.hello.engine["engine"]),
            self._limits,
            answered=self._remember,
            ended=self._ended.set_result,
        )
        self._began = anyio.current_time()
        #: Requests whose reply was read to its end, PING left out.
        self.answered = 0

    @classmethod
    async def start(cls, spec: WorkerSpec, tasks: TaskGroup) -> Worker:
        """Launch the worker of ``spec``; its tasks run in ``tasks`` until it is dead.

        Raises:
            EngineCrashed: it could not be spawned, did not connect or speak in time, or its HELLO was refused.

        """
        worker = cls(spec, await launch(spec, tasks))
        tasks.start_soon(worker._serve)
        tasks.start_soon(worker._notice_exit)
        return worker

    @property
    def alive(self) -> bool:
        """Whether a request may still be answered."""
        return not self._conversation.over and not self._process.exited.is_set()

    @property
    def idle(self) -> bool:
        """Whether no request is in the worker's hands or waits for it; one for spare moments does not count."""
        return self._conversation.idle

    @property
    def age_s(self) -> float:
        """Seconds since it shook hands."""
        return anyio.current_time() - self._began

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def exited(self) -> anyio.Event:
        """Set once its process is reaped; ``closed`` alone may be set before, where it would not die."""
        return self._process.exited

    @property
    def ended_during(self) -> Message | None:
        """What it had in hand when it ended; None where that was nothing, or it has not ended."""
        return self._conversation.ended_during

    @property
    def max_frame(self) -> int:
        """The negotiated frame size in bytes; no request or reply of an admitted batch may pass it."""
        return self._channel.max_frame

    async def model_gone(self) -> None:
        """Wait until it holds no model any more: until it is dead."""
        await self.closed.wait()

    def output_tail(self) -> str:
        """The last 8 KiB of the worker's output."""
        return self._process.output_tail()

    async def request(
        self,
        message: Message,
        raw: Buffer | None = None,
        *,
        operation: str | None = None,
        drained: Callable[[], None] | None = None,
    ) -> Reply:
        """Send ``message`` and the raw frame that belongs to it; return the reply and its raw frame.

        Requests wait their turn in order. ``raw`` must not change until the reply is here. The message decides the
        operation, and so the silence window; whoever names ``operation`` must name that one. ``drained`` is called
        exactly once, without arguments and from the event loop, when the worker is no longer busy with this request:
        when the reply is drained, the worker is dead, or the request was never sent. Hang guards on it that must
        outlive a cancelled caller.

        Raises:
            EngineCrashed: the worker is or went dead, broke the protocol or was silent for longer than its window.
            InvalidRequest: the message is none a worker takes, or a frame of it or of its answer would pass the
                negotiated size; nothing was sent.
            WorkerRefusal: the worker answered ERR and serves on.

        """
        if operation not in (None, message.OPERATION):
            raise ValueError(f"{message.TYPE} is operation {message.OPERATION!r}, not {operation!r}")
        exchange = self.exchange(message, raw, drained=drained)
        self.submit(exchange)
        try:
            await exchange.done.wait()
        except BaseException:
            self.abandon(exchange)
            raise
        return exchange.outcome()

    async def ping(self, req_id: str) -> Pong:
        """What the worker says of itself, asked once it has nothing else to do; it never goes before a request.

        Raises:
            EngineCrashed: as ``request``; an unanswered PING is silence like any other.
            WorkerRefusal: the worker answered ERR and serves on.

        """
        exchange = self.exchange(Ping(req_id))
        refusal = self._refusal(exchange)
        if refusal is not None:
            raise refusal
        self._conversation.put_spare(exchange)
        try:
            await exchange.done.wait()
        except BaseException:
            self._conversation.withdraw(exchange)
            raise
        reply, _ = exchange.outcome()
        assert isinstance(reply, Pong)
        return reply

    def exchange(
        self, message: Message, raw: Buffer | None = None, *, drained: Callable[[], None] | None = None
    ) -> Exchange:
        """A request made ready for ``submit``, with the arguments of ``request``."""
        return Exchange(message, raw, drained, self._dims.get(str(getattr(message, "model_ref", None))))

    def submit(self, exchange: Exchange) -> None:
        """Queue ``exchange``; a refusal settles it instead. An idle worker is sent it before this returns.

        What comes while a dead worker is being buried is told of its end with all the others, once all of it is known.
        """
        refusal = self._refusal(exchange)
        if refusal is not None:
            exchange.fail(refusal)
            return
        self._conversation.put(exchange)

    def abandon(self, exchange: Exchange) -> None:
        """Forget a request that was not begun; one that was is read to its end, whoever waits for it."""
        if self._conversation.withdraw(exchange):
            exchange.fail(WorkerFault("stopped", "the caller went away"))

    async def stop(self, *, drain_s: float = DRAIN_S, terminate_s: float = TERMINATE_S) -> None:
        """Say SHUTDOWN and wait for the end; past ``drain_s`` send SIGTERM, and past ``terminate_s`` more, SIGKILL.

        Requests queued before are served first. Returns when the worker is dead; a second call just waits for that.
        """
        if not self._stopping and self.fault is None:
            self._stopping = True
            self._conversation.put(Exchange(Shutdown(), None))
        with anyio.move_on_after(drain_s):
            await self.closed.wait()
        if not self.closed.is_set():
            self._process.terminate()
            with anyio.move_on_after(terminate_s):
                await self.closed.wait()
        self._process.kill()
        await self.closed.wait()

    def _refusal(self, exchange: Exchange) -> Exception | None:
        if self.fault is not None and self.closed.is_set():
            return self._crash(self.fault)
        if self.fault is None and self._stopping:
            return self._crash(WorkerFault("stopped", "the worker is stopping; load the model again"))
        problem = exchange.problem(self.max_frame)
        return None if problem is None else InvalidRequest(problem)

    async def _serve(self) -> None:
        fault = WorkerFault("stopped", "the host is stopping")
        try:
            fault = await asyncio.shield(self._ended)
        finally:
            with anyio.CancelScope(shield=True):
                await self._bury(fault)

    def _remember(self, request: Message, reply: Message) -> None:
        """Count what is answered, and keep how wide the vectors of each loaded model are."""
        self.answered += not isinstance(request, Ping)
        if isinstance(reply, Loaded):
            self._dims[reply.model_ref] = reply.dims
        elif isinstance(request, Unload):
            self._dims.pop(request.model_ref, None)

    async def _notice_exit(self) -> None:
        """An exit must end a read even when a process the worker left behind still holds its socket."""
        await self._process.exited.wait()
        if self._conversation.shutting_down:
            self._conversation.end(WorkerFault("stopped", "the worker was stopped"))
        else:
            self._stream.shut_reading()

    async def _bury(self, fault: WorkerFault) -> None:
        if self._stopping and fault.reason == "exited":
            fault = WorkerFault("stopped", "the worker was stopped")
        self.fault = fault
        self._conversation.end(fault)
        try:
            await self._process.end(own_end=fault.reason == "exited")
        except Exception:  # whoever waits for this worker must be told, whatever became of its process
            _log.exception("worker %s (pid %d) could not be ended cleanly", self.spec.worker_id, self.pid)
        self._channel.close()
        self._limits.close()
        if fault.reason != "stopped":
            _log.warning(
                "worker %s (pid %d) is dead after %.1f s and %d requests (%s, %s): %s",
                self.spec.worker_id,
                self.pid,
                self.age_s,
                self.answered,
                fault.reason,
                describe_exit(self._process.returncode),
                fault.message,
            )
        # First, in the turn that tells everyone: who asks again on being told is refused, for nobody tells them later.
        self.closed.set()
        for exchange in self._conversation.take_all():
            exchange.fail(self._crash(fault))

    def _crash(self, fault: WorkerFault) -> EngineCrashed:
        return crash_error(
            fault,
            worker_id=self.spec.worker_id,
            returncode=self._process.returncode,
            output_tail=self._process.output_tail(),
        )
