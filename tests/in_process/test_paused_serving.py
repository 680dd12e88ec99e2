"""What requests, jobs and listings of a whole host meet in a pause; its one engine counts as the Neural one."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from synapse_host import host_workers
from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.lanes import neural_engine_models
from synapse_host.lanes.lane import Lane
from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import OTHER, write_tiny_catalog

pytestmark = pytest.mark.anyio
LANE = f"{OTHER}-reference"
MANY = {"items": [{"id": f"item-{place}", "text": "a b"} for place in range(65)], "request_key": "paused"}


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


def pausing_engine(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine of ``lane`` be one that pauses concern."""
    monkeypatch.setattr(neural_engine_models, "NEURAL_ENGINES", frozenset({lane.model.engine.engine}))


async def paused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    pausing_engine(await scene.lane(LANE), monkeypatch)
    answer = await scene.call("lanes.pause", scope="neural_engine", duration_ms=60_000, reason="measuring")
    with anyio.fail_after(60):
        while not (await scene.call("lanes.status"))["hardware_free"]:
            await anyio.lowlevel.checkpoint()
    return answer


async def test_inference_is_refused_and_nothing_is_loaded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.scene(OTHER) as scene:
        asked = await paused(scene, monkeypatch)
        assert asked["lane_ids"] == [LANE]
        for refusal in (
            await scene.not_embedded(LANE),
            await scene.refused("embed.batch", model=LANE, texts=["a", "b"]),
            await scene.refused("embed.batch", model=LANE, **MANY),
        ):
            assert refusal.code == "lane_paused"
            assert refusal.details == {
                "lane_id": LANE,
                "fingerprint": scene.pin(LANE),
                "paused_until_ms": asked["paused_until_ms"],
                "reason": "measuring",
            }
        assert scene.workers_started == 0
        assert (await scene.call("admission.status"))["jobs_minted"] == 0
        assert (await scene.call("admission.status"))["refusals"]["lane_paused"]["count"] == 3
        await scene.call("lanes.resume")
        assert (await scene.embed(LANE))["fingerprint"] == scene.pin(LANE)


async def test_pause_before_quarantine_and_install_before_pause(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.scene(OTHER) as scene:
        await paused(scene, monkeypatch)
        lane = await scene.lane(LANE)
        lane.strikes.fault()
        lane.strikes.fault()
        assert (await scene.not_embedded(LANE)).code == "lane_paused"
        scene.host.downloads.installs.withdraw(OTHER)
        assert (await scene.not_embedded(LANE)).code == "model_not_installed"


async def test_a_listed_lane_says_until_when_it_is_paused_and_only_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.scene(OTHER) as scene:
        asked = await paused(scene, monkeypatch)
        (row,) = (await scene.call("models.list"))["models"]
        assert (row["paused_until_ms"], row["pause_reason"]) == (asked["paused_until_ms"], "measuring")
        await scene.call("lanes.resume")
        (row,) = (await scene.call("models.list"))["models"]
        assert not {"paused_until_ms", "pause_reason"} & set(row)


async def test_a_job_that_meets_a_pause_fails_and_its_replay_goes_on_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.scene(OTHER) as scene:
        pausing_engine(await scene.lane(LANE), monkeypatch)
        status = await scene.call("embed.batch", model=LANE, **MANY)
        # Nothing else has run since the answer: the job has not found its lane yet.
        assert scene.host.pauses.begin(60_000, "measuring")
        status = await ended(scene, status["job_id"])
        assert (status["state"], status["error"]["code"]) == ("failed_transient", "lane_paused")
        assert status["error"]["details"]["lane_id"] == LANE
        await scene.call("lanes.resume")
        again = await scene.call("embed.batch", model=LANE, **MANY)
        assert (await ended(scene, again["job_id"]))["state"] == "done"


async def ended(scene: Scene, job_id: str) -> dict[str, Any]:
    """The status of a job that has ended, one way or the other."""
    with anyio.fail_after(60):
        while (status := await scene.call("model.status", job_id=job_id))["state"] in ("queued", "running"):
            await anyio.lowlevel.checkpoint()
    return status


async def test_a_request_that_meets_a_pause_before_it_was_admitted_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its lane was loaded, and while that checked itself: neither is admission."""
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(LANE)
        pausing_engine(lane, monkeypatch)
        checks = scene.host.catalog.checks
        ensure_ready, require_passed, checked = lane.ensure_ready, checks.require_passed, []

        async def loaded_meanwhile(budget: Any) -> None:
            await ensure_ready(budget)
            scene.host.pauses.begin(60_000, "measuring")

        async def checked_meanwhile(*given: Any) -> None:
            checked.append(lane.model.model_id)
            await require_passed(*given)
            scene.host.pauses.begin(60_000, "measuring")

        monkeypatch.setattr(checks, "require_passed", checked_meanwhile)
        with monkeypatch.context() as patched:
            patched.setattr(lane, "ensure_ready", loaded_meanwhile)
            assert (await scene.not_embedded(LANE)).code == "lane_paused"
            assert not checked
        await scene.call("lanes.resume")
        with anyio.fail_after(60):
            assert (await scene.not_embedded(LANE)).code == "lane_paused"
        assert checked == [LANE]


async def test_a_worker_that_was_asked_for_before_a_pause_does_not_start_in_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(LANE)
        pausing_engine(lane, monkeypatch)

        async def freed_meanwhile(backend: str) -> None:
            await paused(scene, monkeypatch)

        monkeypatch.setattr(scene.host._backends, "require_installed", freed_meanwhile)
        with pytest.raises(SynapseError, match="paused by an operator"):
            await scene.host.workers.start(lane.model)
        assert scene.workers_started == 0
        assert (await scene.call("lanes.status"))["hardware_free"]


async def test_the_lock_is_not_given_back_while_a_worker_starts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.scene(OTHER) as scene:
        lane, lock = await scene.lane(LANE), scene.host.workers._lock
        pausing_engine(lane, monkeypatch)
        said: list[str] = []

        async def start(spec: Any, tasks: Any) -> Any:
            assert spec.stdin == lock.descriptor is not None
            with pytest.raises(OSError, match="not known to have ended") as kept:
                lock.release()
            said.append(str(kept.value))
            raise EngineCrashed("it did not start")

        monkeypatch.setattr(host_workers.Worker, "start", start)
        with pytest.raises(EngineCrashed):
            await scene.host.workers.start(lane.model)
        assert len(said) == 1
        lock.release()
