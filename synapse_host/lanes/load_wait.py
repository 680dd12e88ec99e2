"""How long a request waits for its lane to load, and what it is told where that is too long.

A model of the Neural Engine is loaded by a worker that others use: while it compiles a shape for one of them nothing of
the load goes on, and that is not what ``model_loading`` says (wire contract section 2).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from synapse_host.admission.gate import Budget
from synapse_host.errors import DeadlineExceeded, ModelLoading, SynapseError
from synapse_host.lanes.worker_errors import shape_compiling
from synapse_host.values import value_object


@value_object
class LoadWait:
    """One request's wait for the model ``name``, at most ``cap_ms`` of loading and until its deadline.

    ``compiling`` tells the shape whose compilation held the worker since a second of ``clock``; None for none.
    """

    name: str
    budget: Budget
    cap_ms: float
    clock: Callable[[], float]
    compiling: Callable[[float], int | None]

    async def over(self, finished: anyio.Event) -> None:
        """Wait until ``finished``.

        Raises:
            ModelLoading: the cap was reached, no compilation was in the way, and time is left.
            DeadlineExceeded: the deadline came first.
            SynapseError: ``shape_compiling``, where it came first and a compilation was in the way.

        """
        began = self.clock()
        while not finished.is_set():
            since = self.clock()
            remaining = self.budget.remaining_ms(since)
            wait_ms = min(remaining, self.cap_ms)
            with anyio.move_on_after(wait_ms / 1000):
                await finished.wait()
            if finished.is_set():
                return
            if remaining <= wait_ms:
                raise self._late(began)
            if self.compiling(since) is None:
                raise ModelLoading(f"model {self.name!r} is still loading after {self.cap_ms} ms; retry shortly")

    def _late(self, began: float) -> SynapseError:
        shape = self.compiling(began)
        if shape is not None:
            return shape_compiling(self.name, shape)
        return DeadlineExceeded(
            f"model {self.name!r} was still loading when deadline_ms of {self.budget.deadline_ms} passed; raise "
            "deadline_ms"
        )
