"""Who holds a lane: requests, jobs and checks. A held lane is not unloaded, replaced or removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

import anyio

from synapse_host.errors import ModelInUse
from synapse_host.models.registered_model import RegisteredModel


class Holders:
    """The holders of one lane; ``freed`` is called when the last one leaves."""

    def __init__(self, model: RegisteredModel, freed: Callable[[], None]) -> None:
        self._model = model
        self._freed = freed
        self._held: dict[int, Mapping[str, str]] = {}
        self._numbers = count(1)
        self._gone: anyio.Event | None = None

    def __bool__(self) -> bool:
        return bool(self._held)

    def named(self) -> list[dict[str, str]]:
        """Each as ``model_in_use`` names it (wire contract section 2)."""
        return [dict(holder) for holder in self._held.values()]

    def lease(self, holder: Mapping[str, str] | None) -> Lease:
        """Hold for the length of the block; without ``holder`` it is a request."""
        return Lease(self, holder)

    def take(self, holder: Mapping[str, str] | None) -> int:
        """Hold from here on; the number to leave by."""
        number = next(self._numbers)
        self._held[number] = holder or {"kind": "request", "lease_id": f"lease-{number}"}
        return number

    def leave(self, number: int) -> None:
        """The holder of this number is done."""
        del self._held[number]
        if not self._held:
            if self._gone is not None:
                self._gone.set()
            self._freed()

    async def gone(self) -> None:
        """Wait until nobody holds."""
        while self._held:
            if self._gone is None or self._gone.is_set():
                self._gone = anyio.Event()
            await self._gone.wait()

    def refuse(self) -> None:
        """Raise ``ModelInUse`` while there are any; details name them."""
        if self._held:
            name, held = self._model.model_id, self.named()
            entry = self._model.catalog_id
            named = {"model_id": name} if entry is None else {"catalog_id": entry}
            raise ModelInUse(
                f"model {name!r} is held by {len(held)} request(s) or job(s); wait for them, or end a job with "
                "job.cancel, then unload",
                details={**named, "holders": held},
            )


class Lease:
    """``with holders.lease(...):`` holds the lane for the block."""

    def __init__(self, holders: Holders, holder: Mapping[str, str] | None) -> None:
        self._holders = holders
        self._holder = holder
        self._number = 0

    def __enter__(self) -> None:
        self._number = self._holders.take(self._holder)

    def __exit__(self, *fault: object) -> None:
        self._holders.leave(self._number)
