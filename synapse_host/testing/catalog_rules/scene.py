"""A host of the tiny catalog in this process, for checks of single catalog rules."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synapse_host.errors import SynapseError
from synapse_host.host import Host, open_host
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.resolution import lane_of
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.settings import load_settings
from synapse_host.testing.models.tiny_catalog import TinyCatalog
from synapse_host.testing.rule_checks import Check, Checks, registered


@dataclass(frozen=True, slots=True)
class Scene:
    """A running host whose methods are called without a socket."""

    host: Host
    registry: Registry
    tiny: TinyCatalog

    @property
    def workers_started(self) -> int:
        """Workers the host started so far, those of probes included."""
        return self.host.workers.started

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The payload of an answer; raises the refusal."""
        return (await self.registry.dispatch(method, params, RequestContext(time.monotonic()))).payload

    async def refused(self, method: str, **params: Any) -> SynapseError:
        """The refusal of a call; raises ``AssertionError`` where it is answered."""
        try:
            answer = await self.call(method, **params)
        except SynapseError as refusal:
            return refusal
        raise AssertionError(f"{method} {params} was answered: {str(answer)[:300]}")

    async def embed(self, model: str | None, text: str = "a b", **constraints: Any) -> dict[str, Any]:
        """Embed one text."""
        named = {} if model is None else {"model": model}
        return await self.call("embed.query", text=text, **named, **constraints)

    async def not_embedded(self, model: str | None, text: str = "a b", **constraints: Any) -> SynapseError:
        """The refusal of embedding one text."""
        named = {} if model is None else {"model": model}
        return await self.refused("embed.query", text=text, **named, **constraints)

    async def lane(self, lane_id: str) -> Lane:
        """The lane of an installed entry, unloaded unless something loaded it."""
        return await lane_of(self.host.lanes, self.host.catalog.shelf, lane_id)

    async def row(self, catalog_id: str) -> dict[str, Any]:
        """The row of an entry in ``models.catalog``."""
        rows = (await self.call("models.catalog"))["models"]
        return next(row for row in rows if row["id"] == catalog_id)

    async def reasons(self, catalog_id: str) -> list[dict[str, str]]:
        """Every backend of an entry with its reason, as a refusal lists them."""
        rows = (await self.row(catalog_id))["backends"]
        return [{"backend": row["backend"], "reason": row["reason"]} for row in rows]

    def lane_ids(self, catalog_id: str) -> list[str]:
        """The lanes an entry declares under the settings of this host."""
        entry = self.host.catalog.catalog.entry(catalog_id)
        assert entry is not None
        return entry.lane_ids

    async def stored_checks(self) -> list[Any]:
        """What the store holds of checks."""
        return list(await self.host._stores.checks.all())

    def blob(self, catalog_id: str, path: str) -> Path:
        """Where the cache keeps one file of an entry."""
        entry = self.host.catalog.catalog.entry(catalog_id)
        assert entry is not None
        return self.host.downloads.cache.path(next(file.sha256 for file in entry.files if file.path == path))

    def pin(self, lane_id: str) -> str:
        """The fingerprint the document gives a lane."""
        found = self.host.catalog.catalog.lane(lane_id)
        assert found is not None
        return found[1].fingerprint


@dataclass(frozen=True, slots=True)
class Stage:
    """Makes scenes of one tiny catalog; each has a home of its own."""

    tiny: TinyCatalog
    #: Backends that ``catalog.backends`` names in every scene.
    switched_on: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def scene(
        self,
        *installed: str,
        switched_on: Sequence[str] = (),
        tiny: TinyCatalog | None = None,
        home: Path | None = None,
        config: str = "",
    ) -> AsyncIterator[Scene]:
        """A host with ``installed`` entries, in ``home`` or one of its own, started with the TOML of ``config``."""
        tiny = tiny or self.tiny
        switched_on = sorted({*switched_on, *self.switched_on})
        with tempfile.TemporaryDirectory() as folder:
            home = home or Path(folder) / "home"
            tiny.install(home, *installed, switched_on=switched_on)
            self._recall(home)
            (home / "synapse.toml").write_text(config, encoding="utf-8")
            backends = ",".join(f'"{name}"' for name in switched_on)
            environment = {
                "SYNAPSE_HOME": str(home),
                "SYNAPSE_TEST_HARDWARE_DIR": str(home / "hardware"),
                "SYNAPSE_CATALOG_BACKENDS": f"[{backends}]",
                **tiny.environment,
                **self.environment,
            }
            async with open_host(load_settings(environment)) as host:
                yield Scene(host, host.registry(), tiny)
            self._remember(home)

    def changed(self, folder: str) -> TinyCatalog:
        """A copy of the catalog that a check may spoil, below a folder of its own."""
        return self.tiny.copy(Path(folder) / "catalog")

    def _recall(self, home: Path) -> None:
        """What the backends of this machine can do was asked once; every home believes it."""
        if self._known.is_dir():
            shutil.copytree(self._known, home / "cache" / "capability", dirs_exist_ok=True)

    def _remember(self, home: Path) -> None:
        seen = home / "cache" / "capability"
        if seen.is_dir() and not self._known.is_dir():
            shutil.copytree(seen, staged := self._known.with_name(f"capability-{os.getpid()}"))
            staged.rename(self._known)

    @property
    def _known(self) -> Path:
        return self.tiny.directory / "capability"


CHECKS: Checks[Stage] = {}


def check(*rules: str) -> Callable[[Check[Stage]], Check[Stage]]:
    """Register a check of ``rules`` under its function's name."""
    return registered(CHECKS, rules)


def expect(error: SynapseError, code: str, **details: Any) -> None:
    """Hold a refusal against its code and its whole details object."""
    assert (error.code, error.details) == (code, details or None), error.to_wire()
