"""The part of the composition root that probes lanes and brings back what probes found. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from synapse_host.certification.ledger import Certification, CertificationLedger, Performance
from synapse_host.certification.stored_rows import certification_of, certification_row, performance_of, performance_row
from synapse_host.errors import SynapseError
from synapse_host.framing import Buffer
from synapse_host.lanes.lane import Lane
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.settings import Settings
from synapse_host.store.certification_store import CertificationStore
from synapse_host.supervision.exchange import Reply
from synapse_host.supervision.worker import Worker
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import Message


@value_object
class _HeldWorker:
    """A worker of a probe's own: each request asks first whether a pause of the lane began."""

    worker: Worker
    refuse_paused: Callable[[], None]

    async def request(self, message: Message, raw: Buffer | None = None, **options: Any) -> Reply:
        self.refuse_paused()
        return await self.worker.request(message, raw, **options)

    async def stop(self) -> None:
        await self.worker.stop()


@value_object
class HostProbes:
    """The certifications of one host: carried out, kept, brought back. ``refuse`` raises while a model is paused."""

    settings: Settings
    ledger: CertificationLedger
    store: CertificationStore
    start_worker: Callable[[RegisteredModel], Awaitable[Worker]]
    refuse: Callable[[RegisteredModel], None]
    os_build: str
    module_generation: int
    now_ms: Callable[[], int]

    async def restore(self, model: RegisteredModel) -> None:
        """Bring back what is known of ``model`` on this machine, or that it was measured on another."""
        profile_hash, fingerprint = self.ledger.key(model)
        certification = await self.store.get(profile_hash, fingerprint)
        if certification is not None:
            performance = await self.store.performance(profile_hash, fingerprint)
            self.ledger.record(
                certification_of(certification), None if performance is None else performance_of(performance)
            )
        elif await self.store.measured_elsewhere(profile_hash, fingerprint):
            self.ledger.record_outdated(model)

    async def run(
        self, lane: Lane, tell: Callable[[str], None], count: Callable[[int, int], None] | None = None
    ) -> tuple[Certification, Performance | None]:
        """Probe ``lane``, keep what was found and return it; ``count`` is told how far the step of ``tell`` is.

        Nobody waits for a probe: what it has begun ends, and it begins nothing in a pause of the lane.

        Raises:
            SynapseError: as ``probe_lane``, or ``lane_paused``; nothing is kept then.

        """
        # Imported here: numpy is only needed once somebody asks for a probe.
        from synapse_host.certification.gates import Gates
        from synapse_host.certification.probe import ProbeSetting, probe_lane
        from synapse_host.certification.step_count import uncounted

        model = lane.model

        def refuse_paused() -> None:
            self.refuse(model)

        async def start(it: RegisteredModel) -> Worker:
            refuse_paused()
            return cast(Worker, _HeldWorker(await self.start_worker(it), refuse_paused))

        def step(name: str) -> None:
            refuse_paused()
            tell(name)

        setting = ProbeSetting(
            start_worker=start,
            gates=Gates(self.settings.probe.embed_cosine, self.settings.probe.decile_overlap),
            placement_floor=self.settings.probe.placement_share,
            threads=self.settings.worker.threads,
            os_build=self.os_build,
            module_generation=self.module_generation,
            now_ms=self.now_ms,
            count=count or uncounted,
        )
        try:
            certification, performance = await probe_lane(lane, self.ledger.key(model)[0], setting, step)
        except SynapseError as error:
            if error.code == "lane_paused":
                # It may name a model of the probe's own, which is in nobody's list.
                refuse_paused()
            raise
        await self.store.save(
            certification_row(model, certification),
            None if performance is None else performance_row(model, certification, performance),
        )
        self.ledger.record(certification, performance)
        return certification, performance
