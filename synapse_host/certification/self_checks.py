"""Runs the numerical check of lanes when they are loaded, once for each key, and remembers what it found.

Lanes of the catalog are held against the reference their entry names, preloads against that of their profile. What of
the latter is not published is computed by the reference backend first, outside the time a check may take.

A lane that is checking itself serves nobody: whoever reaches it waits (reading 18). The check holds the lane, goes
through its device's queue like any work, and judges what came out in pure code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from synapse_host.catalog.entries import CatalogEntry
from synapse_host.catalog.standing import CatalogStanding
from synapse_host.certification.profile_subset import subset_for, unpublished, with_figures
from synapse_host.certification.self_check import (
    SelfCheckKey,
    SelfCheckRow,
    concluded,
    failure,
    overtime,
    standing,
)
from synapse_host.certification.self_check_budget import CEILING_MS
from synapse_host.certification.self_check_fixtures import PUBLISHED_READOUT, Fixture, FixtureInvalid
from synapse_host.certification.self_check_judge import Verdict, judge_scores, judge_vectors, readout_fault
from synapse_host.errors import InvalidRequest, ModelLoading, SynapseError
from synapse_host.lanes.host_fault import host_fault
from synapse_host.lanes.lane import Lane
from synapse_host.models.profiles import read_profile
from synapse_host.models.registered_model import RegisteredModel

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    finished: anyio.Event = field(default_factory=anyio.Event)
    error: SynapseError | None = None


class SelfChecks:
    """What the checks of this host's lanes found.

    ``save`` keeps a decided one across restarts; ``figures`` come from the reference backend, for rows without
    published ones.
    """

    def __init__(
        self,
        standing: CatalogStanding,
        fixtures: Callable[[], Mapping[str, Fixture]],
        *,
        os_build: str,
        save: Callable[[SelfCheckRow], Awaitable[None]],
        figures: Callable[[RegisteredModel, Sequence[Sequence[int]]], Awaitable[Sequence[Sequence[float]]]],
        tasks: TaskGroup,
        now_ms: Callable[[], int],
        ceiling_ms: float = CEILING_MS,
    ) -> None:
        self._standing = standing
        self._fixtures = fixtures
        self._os_build = os_build
        self._save = save
        self._figures = figures
        self._tasks = tasks
        self._now_ms = now_ms
        #: Milliseconds one check may compute; tests change it.
        self.ceiling_ms = ceiling_ms
        self._rows: dict[str, SelfCheckRow] = {}
        self._runs: dict[str, _Run] = {}

    def restore(self, row: SelfCheckRow) -> None:
        """Take a check that was decided in an earlier process."""
        self._rows[row.key.check_id] = row

    def forget(self, catalog_id: str) -> None:
        """Check an entry anew: it was removed."""
        self._rows = {check: row for check, row in self._rows.items() if row.key.catalog_id != catalog_id}

    def row(self, lane: Lane) -> SelfCheckRow:
        """Where the check of a lane of the catalog, or of a profile, stands."""
        if lane.model.catalog_id is not None:
            return self.standing(self._entry(lane), lane.model.backend)
        key = self._profile_key(lane.model)
        return standing(key, self._rows.get(key.check_id))

    def standing(self, entry: CatalogEntry, backend: str) -> SelfCheckRow:
        """The same by entry and declared backend, loaded or not."""
        key = self._key(entry, backend)
        return standing(key, self._rows.get(key.check_id))

    def refuse_failed(self, lane: Lane) -> None:
        """Raise ``self_check_failed`` for a lane whose check has failed; never runs one."""
        if lane.model.checks_itself:
            row = self.row(lane)
            if row.state == "failed":
                raise failure(row, lane.model.model_id)

    async def require_passed(self, lane: Lane, wait_s: float, expired: Callable[[], SynapseError]) -> None:
        """Let a loaded lane pass, after its check where that is still to be made; unchecked ones pass at once.

        Raises:
            SynapseError: ``self_check_failed``; what stopped the check; or ``expired()`` after ``wait_s`` seconds.

        """
        if not lane.model.checks_itself:
            return
        row = self.row(lane)
        if row.state == "pending":
            run = self._started(lane, row.key)
            with anyio.move_on_after(wait_s):
                await run.finished.wait()
            if not run.finished.is_set():
                raise expired()
            if run.error is not None:
                raise run.error
        self.refuse_failed(lane)

    def _started(self, lane: Lane, key: SelfCheckKey) -> _Run:
        run = self._runs.get(key.check_id)
        if run is None:
            run = self._runs[key.check_id] = _Run()
            self._tasks.start_soon(self._check, lane, key, run, name=f"self-check {lane.model.model_id}")
        return run

    async def _check(self, lane: Lane, key: SelfCheckKey, run: _Run) -> None:
        name = lane.model.model_id
        try:
            with lane.lease({"kind": "self_check", "check_id": key.check_id}):
                row = concluded(key, await self._verdict(lane), self._now_ms())
            await self._save(row)
            self._rows[key.check_id] = row
            _log.info("self-check of model %r: %s", name, row.reason or row.state)
        except SynapseError as error:
            _log.warning("self-check of model %r did not end: %s: %s", name, error.code, error.message)
            run.error = error
        except Exception as fault:
            run.error = host_fault(f"the self-check of model {name!r}", fault)
        finally:
            del self._runs[key.check_id]
            run.finished.set()
        if self._rows.get(key.check_id, SelfCheckRow(key)).state == "failed":
            # Nobody is served by a lane that failed: its memory goes back.
            lane.unload_when_free()

    async def _verdict(self, lane: Lane) -> Verdict:
        try:
            fixtures = self._fixtures()
        except FixtureInvalid as damaged:
            if lane.model.catalog_id is not None:
                raise  # its key says nothing of the fixtures: the finding would outlive their repair
            return Verdict(False, str(damaged))
        try:
            fixture = await self._reference(lane, fixtures)
        except FixtureInvalid as unusable:
            return Verdict(False, str(unusable))
        other_readout = await to_thread.run_sync(_other_readout, fixture, lane.model)
        if other_readout is not None:
            return Verdict(False, other_readout)
        raw = await self._computed(lane, fixture)
        if lane.model.task == "embed":
            return judge_vectors(fixture, raw, lane.dims or 0)
        return judge_scores(
            fixture, raw, lane.model.pair_template.score, "fp32" if lane.model.dtype == "f32" else "fp16"
        )

    async def _reference(self, lane: Lane, fixtures: Mapping[str, Fixture]) -> Fixture:
        """What the lane is held against; raises ``FixtureInvalid``."""
        if lane.model.catalog_id is None:
            return await self._with_figures(subset_for(lane.model, fixtures), lane.model)
        entry = self._entry(lane)
        fixture = fixtures.get(entry.self_check or "")
        if fixture is None:
            raise FixtureInvalid(f"there is no reference for {entry.id}")
        if fixture.hf_revision != entry.upstream.revision:
            raise FixtureInvalid(f"the reference is of revision {fixture.hf_revision}, the model of another")
        return fixture

    async def _with_figures(self, fixture: Fixture, model: RegisteredModel) -> Fixture:
        rows = [case.ids for case in unpublished(fixture)]
        try:
            return with_figures(fixture, await self._figures(model, rows)) if rows else fixture
        except InvalidRequest as unreadable:
            raise FixtureInvalid(unreadable.message) from unreadable

    async def _computed(self, lane: Lane, fixture: Fixture) -> bytes:
        """The lane's figures, row by row; between two rows the ceiling is looked at (reading 22)."""
        spent_before, parts = lane.executed_ms, []
        for case, row in zip(fixture.cases, fixture.rows, strict=True):
            parts.append(await lane.checked(row, case.case_id))
            spent = lane.executed_ms - spent_before
            if spent > self.ceiling_ms:
                raise overtime(lane.model.model_id, spent, self.ceiling_ms)
        return b"".join(parts)

    def _key(self, entry: CatalogEntry, backend: str) -> SelfCheckKey:
        row = entry.row(backend)
        assert row is not None, f"{entry.id} declares no backend {backend!r}"
        return SelfCheckKey(
            catalog_id=entry.id,
            manifest_digest=entry.manifest_digest,
            backend=backend,
            fingerprint=row.fingerprint,
            engine=self._standing.engine(entry, backend),
            os_build=self._os_build,
            fixture_revision=entry.fixture_revision,
        )

    def _profile_key(self, model: RegisteredModel) -> SelfCheckKey:
        try:
            fixture = self._fixtures().get(read_profile(model.profile or "").model)
        except FixtureInvalid:
            fixture = None
        return SelfCheckKey(
            catalog_id=model.profile or "",
            manifest_digest=model.manifest_digest or "",
            backend=model.backend,
            fingerprint=model.fingerprint,
            engine=model.engine,
            os_build=self._os_build,
            fixture_revision=fixture.revision if fixture else 0,
            subset_seal=fixture.seal if fixture else "",
        )

    def _entry(self, lane: Lane) -> CatalogEntry:
        entry = self._standing.catalog.entry(lane.model.catalog_id or "")
        assert entry is not None, f"{lane.model.model_id} is no lane of the catalog"
        return entry


def still_checking(lane: Lane) -> ModelLoading:
    """What a request is told whose time is up while the lane checks itself."""
    return ModelLoading(f"model {lane.model.model_id!r} is still checking its numbers; retry shortly")


def _other_readout(fixture: Fixture, model: RegisteredModel) -> str | None:
    """Whether a reranker reads its probability from other tokens than ``fixture``; reads the model's config.json."""
    if fixture.readout is None or not model.has_config:
        return None
    yes, no = json.loads(Path(model.config_path).read_bytes()).get("readout_ids", PUBLISHED_READOUT)
    return readout_fault(fixture, (yes, no))
