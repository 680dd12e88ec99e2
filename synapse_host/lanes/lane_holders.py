"""Who holds a lane: requests, jobs and checks. A held lane is not unloaded, replaced or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from synapse_host.errors import ModelInUse
from synapse_host.lanes.registered_model import RegisteredModel


class Holders:
    """The holders of one lane; ``freed`` is called when the last one leaves."""

    def __init__(self, model: RegisteredModel, freed: Callable[[], None]) -> None:
        self._model = model
        self._freed = freed
        self._held: dict[int, Mapping[str, str]] = {}
        self._numbers = count(1)

    def __bool__(self) -> bool:
        return bool(self._held)

    def named(self) -> list[dict[str, str]]:
        """Each as ``model_in_use`` names it (wire contract section 2)."""
        return [dict(holder) for holder in self._held.values()]

    @contextmanager
    def lease(self, holder: Mapping[str, str] | None) -> Iterator[None]:
        """Hold for the length of the block; without ``holder`` it is a request."""
        number = next(self._numbers)
        self._held[number] = holder or {"kind": "request", "lease_id": f"lease-{number}"}
        try:
            yield
        finally:
            del self._held[number]
            if not self._held:
                self._freed()

    def refuse(self) -> None:
        """Raise ``ModelInUse`` while there are any; details name them."""
        if self._held:
            name, held = self._model.model_id, self.named()
            entry = self._model.catalog_id
            named = {"model_id": name} if entry is None else {"catalog_id": entry}
            raise ModelInUse(
                f"model {name!r} is held by {len(held)} request(s) or job(s); wait for them, then unload",
                details={**named, "holders": held},
            )
