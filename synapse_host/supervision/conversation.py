"""The requests of one connection and their replies, one at a time, to the last byte of each.

Nothing here waits: a request is sent by whoever brings it where the worker has nothing to do, and else by the reply
before it; a reply is judged, and its caller told, in the turn of the loop its last byte comes in. Whatever becomes of a
caller, its reply is read to the end before the next request is sent, so none can read the reply of another.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable

from synapse_host.framing import FrameTooLarge
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.time_limits import Alarm, TimeLimits
from synapse_host.worker_protocol.channel import ChannelClosed, WorkerChannel
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import Message, Ping, ProgressReport, Shutdown

_log = logging.getLogger(__name__)


class Conversation:
    """What is asked over ``channel``. It has one end: ``ended`` is told of it once, and nothing is sent or read after.

    ``answered`` hears of each request and its reply before whoever waits for it does. A worker of ``engine`` may be
    silent for as long as ``windows`` says; only lawful PROGRESS renews the window. ``limits`` keeps the time.
    """

    def __init__(
        self,
        channel: WorkerChannel,
        windows: SilenceWindows,
        engine: str,
        limits: TimeLimits,
        *,
        answered: Callable[[Message, Message], None],
        ended: Callable[[WorkerFault], None],
    ) -> None:
        self.over = False
        #: What was asked and not answered at the end.
        self.ended_during: Message | None = None
        self._channel = channel
        self._windows = windows
        self._engine = engine
        self._answered = answered
        self._ended = ended
        self._queue: deque[Exchange] = deque()
        #: What may wait until nothing else is to be done.
        self._spare: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._silence = Alarm(limits, self._silent)
        self._window = 0.0
        channel.attach(self._heard)
        # The worker may have said something, or left, since its handshake.
        self._heard()

    @property
    def idle(self) -> bool:
        """Whether no request is in the worker's hands or waits for it; one for spare moments does not count."""
        return not self._queue and (self._current is None or isinstance(self._current.message, Ping))

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was told to end, which is the last it is told."""
        return self._current is not None and isinstance(self._current.message, Shutdown)

    def put(self, exchange: Exchange) -> None:
        """Ask once all that was put before is answered; where that is so, it is asked before this returns."""
        self._queue.append(exchange)
        self._advance()

    def put_spare(self, exchange: Exchange) -> None:
        """Ask once there is nothing else to ask."""
        self._spare.append(exchange)
        self._advance()

    def withdraw(self, exchange: Exchange) -> bool:
        """Take back what was not yet asked; False where it was."""
        for waiting in (self._queue, self._spare):
            with contextlib.suppress(ValueError):
                waiting.remove(exchange)
                return True
        return False

    def end(self, fault: WorkerFault) -> None:
        """Let it end with ``fault``, unless it has ended; what was asked or waits stays as it is for ``take_all``."""
        if self.over:
            return
        self.over = True
        self.ended_during = None if self._current is None else self._current.message
        self._silence.lift()
        self._channel.stop()
        self._ended(fault)

    def take_all(self) -> list[Exchange]:
        """Every exchange that has no end, in the order they were put; there are none here after that."""
        waiting = [*([self._current] if self._current else []), *self._queue, *self._spare]
        self._current = None
        self._queue.clear()
        self._spare.clear()
        return waiting

    def _advance(self) -> None:
        if self._current is None and not self.over and (waiting := self._queue or self._spare):
            self._current = waiting.popleft()
            self._try(self._ask)

    def _ask(self) -> None:
        assert self._current is not None
        exchange = self._current
        if self._channel.pending_bytes:
            raise ProtocolFault(f"{self._channel.pending_bytes} bytes arrived that no request asked for")
        self._channel.send(exchange.payload, exchange.raw)
        if isinstance(exchange.message, Shutdown):
            self._channel.stop()
            return
        self._set_window(exchange.message.OPERATION)

    def _heard(self) -> None:
        self._try(self._take_frames)

    def _take_frames(self) -> None:
        while self._current is not None and not self.over:
            frame = self._channel.next_frame(self._current.awaited)
            if frame is None:
                return
            self._take(self._current, frame)
        if not self.over and self._channel.next_frame() is not None:
            raise ProtocolFault("a frame arrived that no request asked for")
        if not self.over and self._channel.pending_bytes:
            raise ProtocolFault(f"{self._channel.pending_bytes} bytes arrived that no request asked for")

    def _take(self, exchange: Exchange, frame: bytes | bytearray) -> None:
        try:
            taken = exchange.take(frame)
        except WorkerRefusal as refusal:
            self._settled()
            exchange.fail(refusal)
        else:
            if isinstance(taken, ProgressReport):
                self._set_window(exchange.message.OPERATION, taken.phase)
            elif taken is not None:
                self._settled()
                self._answered(exchange.message, taken[0])
                exchange.finish(taken)
        self._advance()

    def _settled(self) -> None:
        if self._channel.sending:
            raise ProtocolFault("the reply came before the request was read")
        self._silence.lift()
        self._current = None

    def _set_window(self, operation: str, *phase: str) -> None:
        self._window = self._windows.window(operation, self._engine, *phase)
        self._silence.set(self._window)

    def _silent(self) -> None:
        asked = self._current.message.TYPE if self._current else "nothing"
        self.end(WorkerFault("silence", f"{asked} reported no completed work for {self._window:g} s"))

    def _try(self, step: Callable[[], None]) -> None:
        """Take ``step``; what goes wrong in it is the end."""
        try:
            step()
        except ChannelClosed as closed:
            doing = "while idle" if self._current is None else f"during {self._current.message.TYPE}"
            self._end_with(WorkerFault("exited", f"{closed} {doing}"), closed)
        except (ProtocolFault, FrameTooLarge) as broken:
            self._end_with(WorkerFault("protocol_fault", str(broken)), broken)
        except Exception as bug:  # a mistake of ours with one worker must not end the host
            _log.exception("the host failed while talking to a worker")
            said = f"the host failed with {type(bug).__name__}: {bug}"
            self._end_with(WorkerFault("protocol_fault", said), bug)

    def _end_with(self, fault: WorkerFault, cause: Exception) -> None:
        fault.__cause__ = cause
        self.end(fault)
