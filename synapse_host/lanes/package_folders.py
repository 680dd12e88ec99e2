"""The folders a lane's worker keeps compiled packages in, below the cached content they are made of.

Only backends that compile ahead get one, and only for content of the model cache: other files may change or go without
a word. A worker without one compiles for its own life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.errors import StoreFailure
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.supervision.worker import Worker

_log = logging.getLogger(__name__)


class Claim(Protocol):
    """One worker's hold on a folder. Calls block on the disk."""

    folder: Path

    def keep(self) -> None: ...
    def release(self) -> None: ...


#: The folder of a source's digest and a toolchain; None where there is none to be had. Blocks.
ClaimFolder = Callable[[str, Mapping[str, Any]], Claim | None]


class PackageFolders:
    """Lends folders to workers. What a worker compiled is kept when it was stopped, and in doubt when it died."""

    def __init__(self, claim: ClaimFolder, tasks: TaskGroup, *, os_build: str) -> None:
        self._claim = claim
        self._tasks = tasks
        self._os_build = os_build
        #: By process and source and toolchain: a worker of several models may load one of them again.
        self._lent: dict[tuple[int, bytes], Path] = {}

    async def of(self, worker: Worker, model: RegisteredModel) -> str | None:
        """The folder for what ``worker`` compiles of ``model``, its own until it has ended."""
        toolchain = self._toolchain(model)
        key = (worker.pid, canonical_json([model.model_sha256, toolchain]))
        if key in self._lent:
            return str(self._lent[key])
        try:
            claimed = await anyio.to_thread.run_sync(partial(self._claim, model.model_sha256, toolchain))
        except StoreFailure as failure:
            _log.warning("packages of model %r are not kept: %s", model.model_id, failure.message)
            return None
        if claimed is None:
            return None
        self._lent[key] = claimed.folder
        self._tasks.start_soon(self._give_back, worker, model, claimed, key, name=f"packages of {model.model_id}")
        return str(claimed.folder)

    def _toolchain(self, model: RegisteredModel) -> dict[str, Any]:
        return {**model.engine.as_json(), "kernel_revision": model.kernel_revision, "os_build": self._os_build}

    async def _give_back(self, worker: Worker, model: RegisteredModel, claimed: Claim, key: tuple[int, bytes]) -> None:
        try:
            await worker.closed.wait()
        finally:
            del self._lent[key]
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._settle, worker, model, claimed)

    def _settle(self, worker: Worker, model: RegisteredModel, claimed: Claim) -> None:
        try:
            if worker.fault is not None and worker.fault.reason == "stopped":
                claimed.keep()
        except StoreFailure as failure:
            _log.warning("packages of model %r are compiled again next time: %s", model.model_id, failure.message)
        finally:
            claimed.release()
