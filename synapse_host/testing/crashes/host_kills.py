"""A host killed again and again, at random moments, while it works on a job: nothing is lost, nothing done twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from synapse_host.client.blocking_client import Client
from synapse_host.store.upkeep import faults_of
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
STORE = Path("data") / "synapse.sqlite3"
#: Items for each kill that is to come: enough to be at work for longer than the longest wait.
ITEMS_A_KILL, LONGEST_WAIT_S = 600, 0.3
#: Kills that come after pages were committed; the others may hit a host that starts, or a model that loads.
SHARE_AT_WORK = 0.7


def killed_at_random(home: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill a host below ``home`` so often within one job's attempts; figures of what was seen.

    Raises ``AssertionError`` where a committed page is gone or changed, an item was computed again although its page
    was visible, or the store is damaged.
    """
    dice = random.Random(seed)  # noqa: S311 - moments, not secrets
    (directory := home / "model-files").mkdir()
    write_model(directory, TINY, "f32")
    texts = [f"{'tide ' * (place % 9)}number {place}" for place in range(ITEMS_A_KILL * kills)][:4096]
    known: dict[str, bytes] = {}
    grown: Counter[str] = Counter()
    with RunningHost(home, {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host:
        with host.client() as client:
            load_model(client, directory, engine="reference", model_id="tiny")
        for _ in range(kills):
            with host.client() as client:
                job = _hand_in(client, texts)
                assert job["items_done"] >= len(known), "a committed page is gone"
                if dice.random() < SHARE_AT_WORK:
                    _wait_for_more(client, job["job_id"], len(known))
                time.sleep(dice.uniform(0, LONGEST_WAIT_S))  # the moment of the kill, not a wait for anything
            host.kill()
            assert faults_of(home / STORE) == []
            host.start()
            with host.client() as client:
                rows = _rows(client, job["job_id"])
                assert known.items() <= rows.items(), "a committed row is gone or changed"
                grown["kills in which pages were committed"] += len(rows) > len(known)
                known = rows
        with host.client() as client:
            before = _computed(client)
            done = client.wait_for_job(_hand_in(client, texts)["job_id"])
            rows = _rows(client, done["job_id"])
            assert _computed(client) - before == len(texts) - len(known), "an item was computed again"
            expected = client.embed_many("tiny", texts, retries=20).vectors
    assert set(rows) == set(map(str, range(len(texts))))
    assert all(np.array_equal(np.frombuffer(rows[str(at)], "<f4"), expected[at]) for at in range(len(texts)))
    return {"kills": kills, "items": len(texts), "committed before the last start": len(known), **grown}


def _hand_in(client: Client, texts: list[str]) -> dict[str, Any]:
    items = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    return client.call("embed.batch", {"model": "tiny", "items": items, "request_key": "killed"}, retries=50)


def _wait_for_more(client: Client, job_id: str, items: int) -> None:
    """Wait until more than ``items`` are committed, or the job has ended."""
    while (status := client.job_status(job_id))["items_done"] <= items and status["state"] in ("queued", "running"):
        pass


def _rows(client: Client, job_id: str) -> dict[str, bytes]:
    rows: dict[str, bytes] = {}
    cursor = None
    while True:
        page = client.job_page(job_id, cursor=cursor)
        for item in page["vectors"]:
            assert item["id"] not in rows, f"{item['id']} is in two pages"
            rows[item["id"]] = item["vector"].tobytes()
        if "next_cursor" not in page:
            return rows
        cursor = page["next_cursor"]


def _computed(client: Client) -> int:
    return sum(int(row["rows_computed"]) for row in client.models_list()["models"])
