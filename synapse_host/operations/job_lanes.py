"""The lane that carries out a durable job: found again before every group, so that every fence is met at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from synapse_host.admission.admission import ITEM_OVERHEAD_BYTES
from synapse_host.admission.gate import Gate
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_checks import SelfChecks, still_checking
from synapse_host.errors import SubstitutionRejected
from synapse_host.hookspecs import BatchPolicy
from synapse_host.jobs.job_lane import JobLane, TextEncoder
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl
from synapse_host.store.job_tables import JobRow
from synapse_host.values import value_object

#: Bytes a token is charged with while its group runs.
TOKEN_BYTES = 4
#: Seconds a job waits for its lane's check at a time; it then asks again.
CHECK_WAIT_S = 60.0


@value_object
class ServedLane:
    """A lane of the host, as a job sees it; its groups are a job's turns and are charged to the byte budget."""

    lane: Lane
    checks: SelfChecks
    gate: Gate

    @property
    def policy(self) -> BatchPolicy:
        """How large a group the backend measured to be best."""
        return self.lane.model.batch

    @property
    def buckets(self) -> tuple[int, ...] | None:
        """Padded lengths of the loaded engine, where it has a ladder."""
        return self.lane.buckets

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer."""
        return self.lane.tokenizer

    def lease(self, holder: Mapping[str, str] | None = None) -> AbstractContextManager[None]:
        """Hold the lane for the length of the block."""
        return self.lane.lease(holder)

    async def load(self) -> None:
        """Load, and check where that is asked, and wait to the end; raises what either failed with."""
        await self.lane.load()
        await self.checks.require_passed(self.lane, CHECK_WAIT_S, lambda: still_checking(self.lane))

    async def embed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str]) -> tuple[int, bytes]:
        """Vectors of token rows; raises what the lane raises."""
        async with self.gate.executing_group(sum(TOKEN_BYTES * len(row) + ITEM_OVERHEAD_BYTES for row in rows)):
            return await self.lane.embed(rows, item_ids, WorkClass.JOB)


@value_object
class JobLanes:
    """Where jobs find their lanes."""

    lanes: LaneTable
    certifications: CertificationLedger
    checks: SelfChecks
    gate: Gate
    pauses: PauseControl

    def of(self, job: JobRow) -> JobLane:
        """The lane that may carry out ``job`` now.

        Raises:
            UnknownModel: the model is gone.
            SubstitutionRejected: it is another one under the same name.
            SynapseError: the lane is paused, quarantined, failed its check or is not certified.

        """
        lane = self.lanes.get(job.model_id)
        if lane.model.fingerprint != job.fingerprint:
            raise SubstitutionRejected(
                f"model {job.model_id!r} was replaced while job {job.job_id!r} was open: its fingerprint is "
                f"{lane.model.fingerprint}, the job's {job.fingerprint}; submit it again for vectors of the new one",
                details={"lane_id": job.model_id, "required_fingerprint": job.fingerprint},
            )
        self.pauses.refuse(lane.model)
        lane.refuse_quarantined()
        self.checks.refuse_failed(lane)
        if lane.model.certifiable:
            self.certifications.require_certified(lane.model)
        return ServedLane(lane, self.checks, self.gate)
