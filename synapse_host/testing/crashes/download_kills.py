"""A real host killed at random moments of downloading, removing and collecting, and what must hold after each start."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import CacheLayout
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost, HostUnreachable
from synapse_host.errors import SynapseError
from synapse_host.store.upkeep import faults_of, installed_files
from synapse_host.testing.catalog_hub import host_of, hub_of, path_on
from synapse_host.testing.file_server import Plan
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, write_tiny_catalog

#: Longer than a download and a removal of the tiny models take together.
LONGEST_LIFE_S = 0.4
#: Lives that end in the middle of a transfer; the others come and go until then.
SHARE_STALLED = 0.6
FILES = ("model.safetensors", "tokenizer.json", "config.json")


def killed_while_downloading(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill a host below ``folder`` so often; what was found installed after each start, counted.

    Raises ``AssertionError`` where anything is half there, left over, lost, open or damaged.
    """
    catalog, home = write_tiny_catalog(folder / "catalog"), folder / "home"
    moments, found = random.Random(seed), Counter[str]()  # noqa: S311 - moments, not secrets
    with hub_of(catalog) as hub:
        for _ in range(kills):
            host, stop, begun = host_of(home, catalog, hub).start(), threading.Event(), threading.Event()
            found.update(_in_order(host.client(), home))
            if moments.random() < SHARE_STALLED:
                begun = hub.stalled
                hub.plan(path_on(catalog, EMBED, moments.choice(FILES)), Plan(stall_after=100))
            working = threading.Thread(target=_come_and_go, args=(host.socket, begun, stop))
            working.start()
            assert begun.wait(60), "nothing was begun"
            time.sleep(moments.uniform(0.0, LONGEST_LIFE_S))  # the moment of the kill, not a wait for anything
            host.kill()
            stop.set()
            working.join(60)
            hub.stalled.clear()
        with host_of(home, catalog, hub) as last, last.client() as client:
            for name in (EMBED, OTHER):
                assert client.wait_for_download(client.models_download(name)["job_id"])["state"] == "committed"
                client.embed_query(name, "ab", retries=20)
    return dict(found)


def _come_and_go(socket: Path, begun: threading.Event, stop: threading.Event) -> None:
    """Install and remove two models that share nothing, and collect, until the host is gone."""
    try:
        with Client.connect(socket) as client:
            while not stop.is_set():
                jobs = [client.models_download(name)["job_id"] for name in (EMBED, OTHER)]
                for job_id in jobs:
                    client.wait_for_download(job_id)
                begun.set()
                client.models_remove(EMBED)
                client.call("cache.gc", {"grace_ms": 0})
    except (ConnectionLost, HostUnreachable, SynapseError):
        return


def _in_order(client: Client, home: Path) -> list[str]:
    """After a start: nothing half there, nothing left over, nothing open; what is installed is here and whole."""
    cache, store = BlobCache(CacheLayout(home / "cache" / "models"), "test"), home / "data" / "synapse.sqlite3"
    with client:
        pinned = {digest for digest, _ in cache.pins()}
        assert set(cache.layout.digests()) == pinned, "content is left over that nothing needs, or lost"
        assert not list(cache.layout.incoming.iterdir()), "a half file is left"
        assert all(cache.verify(digest) for digest in pinned), "a half file shows under a digest"
        assert {file.sha256 for file in installed_files(store)} == pinned, "an install lacks its content"
        assert client.call("admission.status")["jobs_open"] == 0
        states = {row["id"]: row["install_state"] for row in client.call("models.catalog")["models"]}
    assert set(states.values()) <= {"installed", "not_installed"}
    assert faults_of(store) == []
    return [name for name, state in states.items() if state == "installed"] or ["nothing"]
