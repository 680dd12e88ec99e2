"""A batch too large for an inline answer, through the socket: status, pages, replays, restarts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import IdempotencyConflict, InvalidRequest, ModelInUse
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.running_host import RunningHost

TEXTS = [f"{'tide ' * (place % 11)}number {place}" for place in range(150)]


@pytest.fixture(scope="module")
def job_host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    # The tiny model reads at most 64 tokens of a text.
    limits = {"SYNAPSE_INLINE_MAX_TOKENS": "4000"}
    with RunningHost(certified(tmp_path_factory.mktemp("jobs")), limits) as host:
        yield host


@pytest.fixture
def job_client(job_host: RunningHost) -> Iterator[Client]:
    with job_host.client() as client:
        yield client


def submit(client: Client, key: str, texts: list[str] | None = None, **more: Any) -> dict[str, Any]:
    items = [{"id": f"id-{place}", "text": text} for place, text in enumerate(texts or TEXTS)]
    return client.call("embed.batch", {"model": "tiny", "items": items, "request_key": key, **more})


def ended(client: Client, job_id: str) -> dict[str, Any]:
    while (status := client.model_status(job_id=job_id))["state"] in ("queued", "running"):
        pass
    return status


def pages(client: Client, job_id: str, **options: Any) -> list[dict[str, Any]]:
    found, cursor = [], {}
    while True:
        page = client.call("embed.result", {"job_id": job_id, **cursor, **options})
        found.append(page)
        if "next_cursor" not in page:
            return found
        cursor = {"cursor": page["next_cursor"]}


def test_a_job_answers_with_the_vectors_of_inline_requests(job_client: Client) -> None:
    status = submit(job_client, "same")
    assert status["state"] in ("queued", "running")
    done = ended(job_client, status["job_id"])
    assert (done["state"], done["items_done"], done["page_count"]) == ("done", 150, done["pages_available"])
    inline = job_client.embed_many("tiny", TEXTS)
    read = pages(job_client, status["job_id"], max_page_bytes=9000)
    assert len(read) > 5
    rows = {item["id"]: (item, page) for page in read for item in page["vectors"]}
    assert len(rows) == sum(len(page["vectors"]) for page in read) == 150
    for place in range(150):
        item, page = rows[f"id-{place}"]
        assert np.array_equal(item["vector"], inline.vectors[place]), place
        assert item["submitted_sha256"] == inline.submitted_sha256[place]
        assert item["content_sha256"] == inline.content_sha256[place]
        assert (page["fingerprint"], page["dims"]) == (inline.fingerprint, inline.dims)
        assert page["provenance"] == inline.provenance
    counts = [count for page in read for count in page["real_token_counts"]]
    assert sorted(counts) == sorted(inline.real_token_counts)


def test_the_tokens_of_a_batch_make_a_job_too(job_client: Client) -> None:
    texts = ["a e i o u " * 40] * 64
    with pytest.raises(InvalidRequest, match="request_key") as refusal:
        job_client.call("embed.batch", {"model": "tiny", "texts": texts})
    assert refusal.value.details == {"tokens": 4096, "max_tokens": 4000}
    done = ended(job_client, submit(job_client, "tokens", texts)["job_id"])
    assert (done["state"], done["items_done"]) == ("done", 64)


def test_a_key_attaches_and_other_content_is_refused(job_client: Client) -> None:
    first = submit(job_client, "key")
    assert submit(job_client, "key")["job_id"] == first["job_id"]
    done = ended(job_client, first["job_id"])
    assert submit(job_client, "key")["state"] == done["state"] == "done"
    with pytest.raises(IdempotencyConflict) as refusal:
        submit(job_client, "key", [*TEXTS[:-1], "other"])
    assert refusal.value.details == {"request_key": "key", "job_id": first["job_id"]}


def test_a_job_that_is_not_paused_stays_as_it_is_when_resumed(job_client: Client) -> None:
    job_id = submit(job_client, "resume")["job_id"]
    done = ended(job_client, job_id)
    assert job_client.call("job.resume", {"job_id": job_id}) == done


def test_a_job_that_is_wanted_no_more_is_ended(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    texts = [f"number {place}" for place in range(12_000)]
    with RunningHost(certified(tmp_path), {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host, host.client() as client:
        running = submit(client, "work/0001", texts)["job_id"]
        queued = submit(client, "work/0002", texts[:100])["job_id"]
        # Somebody else's, though its key ends in a number.
        other = submit(client, "work/2024", texts[:100])["job_id"]
        while client.model_status(job_id=running)["pages_available"] < 1:
            pass
        answer = client.job_cancel(request_key="work")
        assert [job["job_id"] for job in answer["jobs"]] == [queued, running]
        assert {job["state"] for job in answer["jobs"]} == {"cancelled"}
        kept = answer["jobs"][1]["items_done"]
        assert 0 < kept < len(texts)
        assert client.job_cancel(request_key="work")["jobs"] == []
        assert client.job_cancel(running) == client.model_status(job_id=running) | {
            "module_generation": answer["module_generation"]
        }
        assert sum(len(page["vectors"]) for page in pages(client, running)) == kept
        assert client.wait_for_job(running)["state"] == "cancelled"
        assert client.wait_for_job(other)["state"] == "done", "only what was named is ended"
        # Nobody holds the model any more, and the key goes on.
        again = submit(client, "work/0001", texts)
        assert (again["state"], again["items_done"]) == ("queued", kept)
        client.job_cancel(again["job_id"])
        client.model_unload("tiny")
        counted = client.call("admission.status")
        assert {name: counted[f"jobs_{name}"] for name in ("minted", "completed", "failed", "open")} == {
            "minted": 4,
            "completed": 1,
            "failed": 3,
            "open": 0,
        }


def test_a_cursor_that_is_not_of_the_job_is_refused(job_client: Client) -> None:
    jobs = [submit(job_client, key)["job_id"] for key in ("cursor", "other cursor")]
    for job_id in jobs:
        ended(job_client, job_id)
    page = job_client.call("embed.result", {"job_id": jobs[0], "max_page_bytes": 9000})
    given = page["next_cursor"]
    rest = job_client.call("embed.result", {"job_id": jobs[0], "cursor": given})
    assert len(page["vectors"]) + len(rest["vectors"]) == 150
    place, _, mark = given.rpartition(".")
    for job_id, cursor in ((jobs[1], given), *((jobs[0], it) for it in ("0.3", place, f"0.3.{mark}", f"0{given}"))):
        with pytest.raises(InvalidRequest, match="none this host gave for job") as refusal:
            job_client.call("embed.result", {"job_id": job_id, "cursor": cursor})
        assert refusal.value.details == {"job_id": job_id, "cursor": cursor}


@pytest.mark.anyio
async def test_numbers_come_as_json_where_raw_vectors_were_not_agreed_on(job_host: RunningHost) -> None:
    with job_host.client() as client:
        job_id = submit(client, "json")["job_id"]
        ended(client, job_id)
        (whole,) = pages(client, job_id)
    peer = await RawPeer.connect(job_host.socket)
    answer = await peer.ask({"id": 1, "method": "embed.result", "params": {"job_id": job_id}})
    await peer.close()
    vectors = [item["vector"] for item in answer["result"]["vectors"]]
    assert np.array_equal(np.array(vectors, dtype=np.float32), [item["vector"] for item in whole["vectors"]])
    assert "raw" not in answer["result"]


def test_a_model_is_held_by_its_job(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    with RunningHost(certified(tmp_path), {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host, host.client() as client:
        job_id = submit(client, "held", TEXTS * 20)["job_id"]
        while client.model_status(job_id=job_id)["pages_available"] < 1:
            pass
        with pytest.raises(ModelInUse) as refusal:
            client.model_unload("tiny")
        assert refusal.value.details == {"model_id": "tiny", "holders": [{"kind": "job", "job_id": job_id}]}


def test_a_job_outlives_a_killed_host(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    texts = [f"{'tide ' * (place % 11)}number {place}" for place in range(1200)]
    with RunningHost(certified(tmp_path), {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host:
        with host.client() as client:
            first = submit(client, "kill", texts)["job_id"]
            while client.model_status(job_id=first)["pages_available"] < 3:
                pass
        host.kill()
        host.start()
        with host.client() as client:
            before = client.model_status(job_id=first)
            assert (before["state"], before["error"]["code"]) == ("failed_transient", "module_restarted")
            assert before["pages_available"] >= 3
            kept = {item["id"] for page in pages(client, first) for item in page["vectors"]}
            assert len(kept) == before["items_done"]
            computed = _rows_computed(client)
            again = submit(client, "kill", texts)
            assert again["job_id"] != first
            assert again["items_done"] >= len(kept)
            assert ended(client, again["job_id"])["state"] == "done"
            assert _rows_computed(client) - computed == 1200 - len(kept)
            rows = [item["id"] for page in pages(client, again["job_id"]) for item in page["vectors"]]
            assert sorted(rows) == sorted(f"id-{place}" for place in range(1200))
        host.stop()
    closing = [line for line in host.output if "closed as" in line]
    assert sum(first in line for line in closing) == 1
    assert len(closing) == 2


def _rows_computed(client: Client) -> int:
    return sum(row["rows_computed"] for row in client.models_list()["models"])


def test_a_job_outlives_a_killed_worker(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    with RunningHost(certified(tmp_path), {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host, host.client() as client:
        job_id = submit(client, "worker", TEXTS * 10)["job_id"]
        while client.model_status(job_id=job_id)["pages_available"] < 2:
            pass
        (lane,) = client.call("admission.status")["health"]["lanes"]
        os.kill(lane["worker_pid"], signal.SIGKILL)
        done = ended(client, job_id)
        assert (done["state"], done["items_done"]) == ("done", 1500)
        rows = [item["id"] for page in pages(client, job_id) for item in page["vectors"]]
        assert len(rows) == len(set(rows)) == 1500


def test_a_host_that_is_stopped_keeps_what_it_computed(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    # Nothing is committed before the stop: what there is afterwards was committed by it.
    limits = {"SYNAPSE_JOBS_COMMIT_S": "3600", "SYNAPSE_JOBS_PAGE_BYTES": str(1 << 30)}
    with RunningHost(certified(tmp_path), limits) as host:
        with host.client() as client:
            job_id = submit(client, "stop", TEXTS * 20)["job_id"]
            while _rows_computed(client) < 64:
                pass
            assert client.model_status(job_id=job_id)["items_done"] == 0
        assert host.stop() == 0
        host.start()
        with host.client() as client:
            status = client.model_status(job_id=job_id)
            assert (status["state"], status["error"]["code"]) == ("failed_transient", "module_restarted")
            assert status["items_done"] >= 64
            assert len(pages(client, job_id)[0]["vectors"]) > 0


def test_long_texts_are_a_job_before_they_are_tokenised(job_client: Client) -> None:
    texts = ["a " * 300_000] * 2
    with pytest.raises(InvalidRequest, match="request_key") as refusal:
        job_client.call("embed.batch", {"model": "tiny", "texts": texts})
    assert refusal.value.details == {"bytes": 1_200_256, "max_bytes": 1 << 20}
    status = submit(job_client, "long", texts)
    assert status["state"] in ("queued", "running")
    assert ended(job_client, status["job_id"])["items_done"] == 2
    assert job_client.embed_many("tiny", texts).vectors.shape[0] == 2, "halves pass"
