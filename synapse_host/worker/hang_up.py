"""The thread that notices the end of the host while the main thread computes.

It reads nothing: the main thread takes its requests from the connection itself. A frame handed from one thread to
another costs a short query a second wake-up, which is dear where an idle core must first be woken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Exit status of a worker whose host went away in the middle of a request.
EXIT_ORPHANED = 70


def _exit_at_once() -> None:
    # Not sys.exit: the main thread is inside an engine call that may never return.
    os._exit(EXIT_ORPHANED)


class HangUpWatch:
    """Calls ``orphaned``, on a thread of its own, when the host goes away while a request is in hand."""

    def __init__(self, wait_for_end: Callable[[], None], orphaned: Callable[[], None] = _exit_at_once) -> None:
        self._wait_for_end = wait_for_end
        self._orphaned = orphaned
        self._ended = False
        self._busy = False

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="hang-up-watch", daemon=True).start()

    def begin_work(self) -> None:
        """Say that a request is in hand: from here to ``end_work`` no answer is wanted once the peer is gone."""
        self._busy = True
        # The end may have come between the watch's last look at ``_busy`` and the line above.
        if self._ended:
            self._orphaned()

    def end_work(self) -> None:
        """Say that the request is answered."""
        self._busy = False

    def _watch(self) -> None:
        self._wait_for_end()
        self._ended = True
        if self._busy:
            self._orphaned()
