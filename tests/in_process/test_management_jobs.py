from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from synapse_host.errors import IdempotencyConflict, InvalidRequest, ModuleRestarted, QueueFull, StoreFailure
from synapse_host.operations.management_jobs import ManagementJob, ManagementJobs

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def jobs_of(generation: int = 3, most_running: int | None = None) -> AsyncIterator[ManagementJobs]:
    async with anyio.create_task_group() as tasks:
        yield ManagementJobs("model-load", module_generation=generation, tasks=tasks, most_running=most_running)
        tasks.cancel_scope.cancel()


async def succeed(job: ManagementJob) -> None:
    job.state = "ready"
    job.facts["model_id"] = "m"


async def fail(job: ManagementJob) -> None:
    raise StoreFailure("no room")


def submit(jobs: ManagementJobs, run=succeed, key: str | None = None, content: str = "a") -> ManagementJob:  # type: ignore[no-untyped-def]
    return jobs.submit(key, {"model": content}, run, first_state="resolving", failed_state="failed")


async def test_a_job_goes_from_its_first_state_to_what_its_work_says() -> None:
    async with jobs_of() as jobs:
        job = submit(jobs)
        assert jobs.get(job.job_id).to_wire()["state"] == "resolving"
        await anyio.wait_all_tasks_blocked()
        status = jobs.get(job.job_id).to_wire()
        assert (status["state"], status["model_id"]) == ("ready", "m")
        assert "error" not in status


async def test_a_refusal_becomes_the_failed_state_with_its_error() -> None:
    async with jobs_of() as jobs:
        job = submit(jobs, fail)
        await anyio.wait_all_tasks_blocked()
        status = jobs.get(job.job_id).to_wire()
        assert status["state"] == "failed"
        assert status["error"]["code"] == "store_failure"


async def test_a_key_made_for_a_call_without_one_is_nobody_elses() -> None:
    async with jobs_of() as jobs:
        taken = [submit(jobs, key=f"model-load:3:{number}", content=f"taken {number}") for number in range(1, 6)]
        made = [submit(jobs, content="b") for _ in range(3)]
        assert len({job.job_id for job in [*taken, *made]}) == 8
        assert len({job.request_key for job in [*taken, *made]}) == 8


async def test_the_same_key_and_content_attach_and_other_content_conflicts() -> None:
    async with jobs_of() as jobs:
        first = submit(jobs, key="k")
        assert submit(jobs, key=" k ") is first
        with pytest.raises(IdempotencyConflict, match="'k'") as refused:
            submit(jobs, key="k", content="b")
        assert refused.value.details == {"request_key": "k", "job_id": first.job_id}


async def test_a_failed_job_is_started_again_under_its_key() -> None:
    async with jobs_of() as jobs:
        first = submit(jobs, fail, key="k")
        await anyio.wait_all_tasks_blocked()
        second = submit(jobs, succeed, key="k")
        assert second.job_id != first.job_id
        await anyio.wait_all_tasks_blocked()
        assert jobs.get(second.job_id).state == "ready"


@pytest.mark.parametrize("key", [None, "", "   "])
async def test_without_a_key_every_submission_is_its_own_job(key: str | None) -> None:
    async with jobs_of() as jobs:
        assert submit(jobs, key=key).job_id != submit(jobs, key=key).job_id


async def test_a_job_of_an_earlier_process_is_told_apart_from_one_that_never_was() -> None:
    async with jobs_of(generation=3) as jobs:
        with pytest.raises(ModuleRestarted, match="model-load-2-1"):
            jobs.get("model-load-2-1")
        for unknown in ("model-load-3-99", "model-load-4-1", "probe-1-1", "nonsense", "model-load-x-1"):
            with pytest.raises(InvalidRequest, match=unknown):
                jobs.get(unknown)


async def test_only_so_many_run_at_once_and_a_known_key_still_attaches() -> None:
    go_on = anyio.Event()

    async def wait(job: ManagementJob) -> None:
        await go_on.wait()

    async with jobs_of(most_running=2) as jobs:
        first = submit(jobs, wait, key="k")
        submit(jobs, wait)
        for _ in range(3):
            with pytest.raises(QueueFull, match="2 model-load jobs are in progress") as refused:
                submit(jobs, wait)
        assert refused.value.details == {"jobs": 2, "max_jobs": 2}
        assert refused.value.error_class == "transient"
        assert submit(jobs, wait, key="k") is first
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        submit(jobs, fail)
        submit(jobs, wait)
        await anyio.wait_all_tasks_blocked()
        submit(jobs, wait)


async def test_a_refused_submission_binds_no_key() -> None:
    async with jobs_of(most_running=1) as jobs:

        async def for_ever(job: ManagementJob) -> None:
            await anyio.sleep_forever()

        submit(jobs, for_ever)
        with pytest.raises(QueueFull):
            submit(jobs, key="k")
        assert len(jobs._jobs) == len(jobs._keys) == 1
