"""Job-shaped management work (model.load, probe.start): started by one call, polled by another.

The table lives in memory: such work cannot outlive the process, and a poll for a job of an earlier process is told so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from anyio.abc import TaskGroup

from synapse_host.errors import IdempotencyConflict, InvalidRequest, ModuleRestarted, QueueFull, SynapseError
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.lanes.host_fault import host_fault

#: Finished jobs kept for polling; the oldest beyond it are forgotten.
KEPT_FINISHED_JOBS = 1000
#: Suggested wait when too many run: most such work takes longer than a request.
FULL_RETRY_MS = 1000
#: No host has been restarted more often than this many digits can say.
_GENERATION_DIGITS = 18


@dataclass(slots=True)
class ManagementJob:
    """One piece of management work. ``state`` ends in ``done_state`` or in a failed state with ``error``."""

    job_id: str
    request_key: str
    digest: str
    state: str
    facts: dict[str, Any] = field(default_factory=dict)
    error: SynapseError | None = None
    finished: bool = False

    def to_wire(self) -> dict[str, Any]:
        """The job's status."""
        status: dict[str, Any] = {"job_id": self.job_id, "request_key": self.request_key, "state": self.state}
        status.update(self.facts)
        if self.error is not None:
            status["error"] = self.error.to_wire()
        return status


class ManagementJobs:
    """The jobs of one kind, with idempotent submission by request key."""

    def __init__(self, kind: str, *, module_generation: int, tasks: TaskGroup, most_running: int | None = None) -> None:
        self._kind = kind
        self._most_running = most_running
        self._generation = module_generation
        self._tasks = tasks
        self._numbers = count(1)
        self._jobs: dict[str, ManagementJob] = {}
        self._keys: dict[str, str] = {}

    def submit(
        self,
        request_key: str | None,
        content: Mapping[str, Any],
        run: Callable[[ManagementJob], Awaitable[None]],
        *,
        first_state: str,
        failed_state: str,
        transient_state: str | None = None,
    ) -> ManagementJob:
        """Start ``run`` as a job, or return the job the key already names; the key of a failed job starts another.

        A refusal ends it in ``failed_state``, or where given in ``transient_state`` when trying again may help.

        Raises:
            IdempotencyConflict: the key is bound to other content.
            QueueFull: as many jobs of this kind are running as may.

        """
        digest = sha256_hex(canonical_json(content))
        number = next(self._numbers)
        key = (request_key or "").strip() or self._unused_key(number)
        known = self._jobs.get(self._keys.get(key, ""))
        if known is not None and known.digest != digest:
            raise IdempotencyConflict(
                f"request_key {key!r} is bound to another request; use a new key",
                details={"request_key": key, "job_id": known.job_id},
            )
        if known is not None and known.error is None:
            return known
        self._refuse_another()
        job = ManagementJob(f"{self._kind}-{self._generation}-{number}", key, digest, first_state)
        self._jobs[job.job_id] = job
        self._keys[key] = job.job_id
        self._forget_oldest()
        failed = {"permanent": failed_state, "transient": transient_state or failed_state}
        self._tasks.start_soon(self._carry_out, job, run, failed, name=job.job_id)
        return job

    def get(self, job_id: str) -> ManagementJob:
        """The job; raises ``ModuleRestarted`` for one of an earlier process, ``InvalidRequest`` for an unknown id."""
        job = self._jobs.get(job_id)
        if job is not None:
            return job
        kind, _, rest = job_id.rpartition(f"{self._kind}-")
        generation = rest.partition("-")[0]
        # int would also read other alphabets' digits, and refuses to read very many.
        readable = generation.isascii() and generation.isdecimal() and len(generation) <= _GENERATION_DIGITS
        if not kind and readable and int(generation) < self._generation:
            raise ModuleRestarted(f"job {job_id!r} ended when the host restarted; submit it again")
        raise InvalidRequest(
            f"no job {job_id!r}; it is unknown or was forgotten after it ended", details={"job_id": job_id}
        )

    def _unused_key(self, number: int) -> str:
        """A key for a call that gave none; callers may have given keys of the same shape."""
        keys = (f"{self._kind}:{self._generation}:{place}" for place in count(number))
        return next(key for key in keys if key not in self._keys)

    def _refuse_another(self) -> None:
        running = sum(not job.finished for job in self._jobs.values())
        if self._most_running is not None and running >= self._most_running:
            raise QueueFull(
                f"{running} {self._kind} jobs are in progress, which is the host's limit; "
                "wait for one of them to end, then submit again",
                details={"jobs": running, "max_jobs": self._most_running},
                retry_after_ms=FULL_RETRY_MS,
            )

    async def _carry_out(
        self,
        job: ManagementJob,
        run: Callable[[ManagementJob], Awaitable[None]],
        failed: Mapping[str, str],
    ) -> None:
        try:
            await run(job)
        except SynapseError as error:
            job.error = error
        except Exception as fault:
            job.error = host_fault(f"job {job.job_id!r}", fault)
        finally:
            if job.error is not None:
                job.state = failed[job.error.error_class]
                _forget_frames(job.error)
            job.finished = True

    def _forget_oldest(self) -> None:
        finished = [job for job in self._jobs.values() if job.finished]
        for job in finished[: max(0, len(finished) - KEPT_FINISHED_JOBS)]:
            del self._jobs[job.job_id]
            if self._keys.get(job.request_key) == job.job_id:
                del self._keys[job.request_key]


def _forget_frames(error: SynapseError) -> None:
    """Let go of the frames an error came through: a kept job would keep whole files and tokenizers alive with them."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
