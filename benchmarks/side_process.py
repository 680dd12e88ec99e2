"""One side of a comparison in a process of its own, so that its libraries and threads do not disturb the other's."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Given = ParamSpec("Given")

#: Seconds a side gets to end by itself.
_END_S = 10.0


class SideFailed(RuntimeError):
    """The other process raised; the message holds its traceback."""


class SideProcess(Generic[Job, Answer]):
    """A child that calls ``make(*given)`` once and its result for every job; use as a context manager.

    What is timed is timed in the child: pickling and pipes are nobody's cost.
    """

    def __init__(self, make: Callable[Given, Callable[[Job], Answer]], *given: Given.args, **named: Given.kwargs):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, given, named), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def __call__(self, job: Job) -> Answer:
        """Do one job; raises ``SideFailed``."""
        self._pipe.send(job)
        answer: Answer = self._receive()  # type: ignore[assignment]
        return answer

    def __enter__(self) -> SideProcess[Job, Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> object:
        try:
            failure, answer = self._pipe.recv()
        except EOFError:
            raise SideFailed(f"{self._process.name} ended with status {self._process.exitcode}") from None
        if failure is not None:
            raise SideFailed(failure)
        return answer


def _serve(
    pipe: Connection,
    make: Callable[..., Callable[[object], object]],
    given: tuple[object, ...],
    named: dict[str, object],
) -> None:
    try:
        work = make(*given, **named)
        pipe.send((None, None))
        while True:
            pipe.send((None, work(pipe.recv())))
    except EOFError:
        return
    except BaseException:
        pipe.send((traceback.format_exc(), None))
