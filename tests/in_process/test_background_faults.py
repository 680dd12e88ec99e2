"""A mistake in background work reaches whoever waits for it, typed, and nobody else."""

from __future__ import annotations

import logging
from typing import NoReturn

import anyio
import pytest

from synapse_host.errors import EngineCrashed, QueueFull
from synapse_host.lanes.guarded_tasks import GuardedTasks
from synapse_host.operations.management_jobs import ManagementJob, ManagementJobs

pytestmark = pytest.mark.anyio


async def blunder() -> NoReturn:
    raise ZeroDivisionError("planted")


async def test_a_mistake_in_a_job_fails_that_job(caplog: pytest.LogCaptureFixture) -> None:
    async def run(job: ManagementJob) -> None:
        await blunder()

    async with anyio.create_task_group() as tasks:
        jobs = ManagementJobs("probe", module_generation=1, tasks=tasks)
        job = jobs.submit(None, {}, run, first_state="running", failed_state="failed_permanent")
        await anyio.wait_all_tasks_blocked()
        status = jobs.get(job.job_id).to_wire()
        assert (status["state"], job.finished) == ("failed_permanent", True)
        assert status["error"]["details"] == {"reason": "host_fault"}
        assert status["error"]["class"] == "permanent"
    assert "ZeroDivisionError: planted" in caplog.text


@pytest.mark.parametrize(
    ("error", "state"),
    [(QueueFull("later"), "failed_transient"), (EngineCrashed("no", error_class="permanent"), "failed_permanent")],
)
async def test_a_job_ends_in_the_state_of_its_errors_class(error: Exception, state: str) -> None:
    async def run(job: ManagementJob) -> None:
        raise error

    async with anyio.create_task_group() as tasks:
        jobs = ManagementJobs("probe", module_generation=1, tasks=tasks)
        job = jobs.submit(
            None,
            {},
            run,
            first_state="running",
            failed_state="failed_permanent",
            transient_state="failed_transient",
        )
        await anyio.wait_all_tasks_blocked()
        assert job.state == state


async def test_a_guarded_task_that_fails_is_logged_and_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done = anyio.Event()

    async def other(number: int) -> None:
        await anyio.wait_all_tasks_blocked()
        assert number == 7
        done.set()

    async with anyio.create_task_group() as group:
        tasks = GuardedTasks(group)
        tasks.start_soon(blunder, name="the blunder")
        tasks.start_soon(other, 7)
    assert done.is_set()
    assert "the blunder" in caplog.text
    assert "ZeroDivisionError: planted" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


async def test_guarded_tasks_are_cancelled_with_their_group() -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            GuardedTasks(group).start_soon(anyio.sleep_forever)
            group.cancel_scope.cancel()
