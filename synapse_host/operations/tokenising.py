"""Threads in which long texts are tokenised, so that reading a million characters holds up nobody else's request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from synapse_host.admission.gate import ByteHold
from synapse_host.tokenization.freed_memory import MANY_CHARACTERS, give_back_freed_memory

#: Texts longer than this many characters together are tokenised off the event loop: at 1.5 M tokens/s they would
#: hold it for more than a millisecond.
INLINE_TOKENIZING_CHARS = 4096

Result = TypeVar("Result")


def _giving_back(work: Callable[[], Result]) -> Result:
    try:
        return work()
    finally:
        give_back_freed_memory()


class TokenisingPool:
    """As many threads as cores, made when first needed."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], Result], hold: ByteHold, characters: int = 0) -> Result:
        """What ``work`` makes of so many characters, from a thread. A caller that is cancelled leaves at once.

        A thread cannot be stopped: ``hold`` then lasts until it is done, for that is when its memory is free again.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="tokenise")
        loop = asyncio.get_running_loop()
        hold.share()

        def over(_: Future[Any]) -> None:
            # The host has ended meanwhile: nobody counts bytes any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(hold.release)

        future = self._threads.submit(work if characters < MANY_CHARACTERS else partial(_giving_back, work))
        future.add_done_callback(over)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Start no more; what runs ends by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
