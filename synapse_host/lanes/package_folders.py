"""The folders a lane's worker keeps compiled packages in, below the cached content they are made of.

Only backends that compile ahead get one, and only for content of the model cache: other files may change or go without
a word. A worker without one compiles for its own life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.errors import StoreFailure
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.worker import Worker

_log = logging.getLogger(__name__)


class Claim(Protocol):
    """One worker's hold on a folder. Calls block on the disk."""

    folder: Path

    def keep(self) -> None: ...
    def release(self) -> None: ...


#: The folder of a source's digest and a toolchain; None where there is none to be had. Blocks.
ClaimFolder = Callable[[str, Mapping[str, Any]], Claim | None]
#: A process, and what it compiles with what.
_Key = tuple[int, bytes]


@dataclass(slots=True)
class _Loan:
    """A folder with a worker, for as many of its lanes as have the model in there."""

    claimed: Claim
    lanes: int = 0
    settled: anyio.Event = field(default_factory=anyio.Event)


class PackageFolders:
    """Lends folders to workers. What a worker compiled is kept when the model left it, and in doubt when it died."""

    def __init__(self, claim: ClaimFolder, tasks: TaskGroup, *, os_build: str) -> None:
        self._claim = claim
        self._tasks = tasks
        self._os_build = os_build
        #: By process and source and toolchain: a worker of several models may load one of them again.
        self._lent: dict[_Key, _Loan] = {}

    async def of(self, worker: Worker, model: RegisteredModel) -> str | None:
        """The folder for what ``worker`` compiles of ``model``, its own until it holds the model no more."""
        toolchain = self._toolchain(model)
        key = (worker.pid, canonical_json([model.model_sha256, toolchain]))
        while (loan := self._lent.get(key)) is not None and not loan.lanes:
            # What the worker compiled before is just being recorded; without waiting it would compile it again.
            await loan.settled.wait()
        if loan is None:
            claimed = await self._claimed(model, toolchain)
            if claimed is None:
                return None
            loan = self._lent[key] = _Loan(claimed)
        loan.lanes += 1
        self._tasks.start_soon(self._give_back, worker, model, loan, key, name=f"packages of {model.model_id}")
        return str(loan.claimed.folder)

    async def _claimed(self, model: RegisteredModel, toolchain: Mapping[str, Any]) -> Claim | None:
        try:
            return await anyio.to_thread.run_sync(partial(self._claim, model.model_sha256, toolchain))
        except StoreFailure as failure:
            _log.warning("packages of model %r are not kept: %s", model.model_id, failure.message)
            return None

    def _toolchain(self, model: RegisteredModel) -> dict[str, Any]:
        return {**model.engine.as_json(), "kernel_revision": model.kernel_revision, "os_build": self._os_build}

    async def _give_back(self, worker: Worker, model: RegisteredModel, loan: _Loan, key: _Key) -> None:
        whole = False
        try:
            await worker.model_gone()
            whole = worker.fault is None or worker.fault.reason == "stopped"
        finally:
            loan.lanes -= 1
            if not loan.lanes:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._settle, model, loan.claimed, whole)
                del self._lent[key]
                loan.settled.set()

    def _settle(self, model: RegisteredModel, claimed: Claim, whole: bool) -> None:
        try:
            if whole:
                claimed.keep()
        except StoreFailure as failure:
            _log.warning("packages of model %r are compiled again next time: %s", model.model_id, failure.message)
        finally:
            claimed.release()
