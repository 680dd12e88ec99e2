"""The thread that only reads, so that the end of the host is noticed while the engine computes."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from synapse_host.worker_protocol.faults import ProtocolFault

#: Exit status of a worker whose host went away in the middle of a request.
EXIT_ORPHANED = 70


def _exit_at_once() -> None:
    # Not sys.exit: the main thread is inside an engine call that may never return.
    os._exit(EXIT_ORPHANED)


class FrameReader:
    """Hands the frames of ``read`` to the main thread in order.

    ``read`` gives a payload, or None at the end. When the end comes while a request is in hand, ``orphaned`` is
    called on the reading thread; no answer is wanted any more.
    """

    def __init__(self, read: Callable[[], bytes | None], orphaned: Callable[[], None] = _exit_at_once) -> None:
        self._read = read
        self._orphaned = orphaned
        self._frames: queue.SimpleQueue[bytes | ProtocolFault | None] = queue.SimpleQueue()
        self._ended = False
        self._busy = False

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="frame-reader", daemon=True).start()

    def next_request(self) -> bytes | None:
        """Wait idle for the next control frame; None at the end. Raises ``ProtocolFault`` for a broken frame."""
        self._busy = False
        return self._take()

    def begin_work(self) -> None:
        """Say that the frame just taken asks for work: from here to the next request, the end means orphaned."""
        self._busy = True
        # The end may have come between the reader's last look at ``_busy`` and the line above.
        if self._ended:
            self._orphaned()

    def next_raw(self) -> bytes:
        """The raw frame of the request in hand; raises ``ProtocolFault`` when the connection ends instead."""
        frame = self._take()
        if frame is None:
            raise ProtocolFault("the connection ended where the raw frame of a request belongs")
        return frame

    def _run(self) -> None:
        try:
            while (frame := self._read()) is not None:
                self._frames.put(frame)
            self._end(None)
        except ProtocolFault as fault:
            self._end(fault)
        except OSError as problem:
            self._end(ProtocolFault(f"the host connection broke: {problem}"))

    def _end(self, last: ProtocolFault | None) -> None:
        self._ended = True
        self._frames.put(last)
        if self._busy:
            self._orphaned()

    def _take(self) -> bytes | None:
        frame = self._frames.get()
        if isinstance(frame, ProtocolFault):
            raise frame
        return frame
