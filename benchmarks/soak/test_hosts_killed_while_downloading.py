"""kill -9 of a real host at random moments of downloading and removing: what is installed after each is whole."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import CacheLayout
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost, HostUnreachable
from synapse_host.errors import SynapseError
from synapse_host.testing.catalog_hub import host_of, hub_of
from synapse_host.testing.tiny_catalog import EMBED, OTHER, write_tiny_catalog

KILLS = 40
#: Longer than a download and a removal of the tiny models take together.
LONGEST_LIFE_S = 0.4


def come_and_go(socket: Path, stop: threading.Event) -> None:
    """Install and remove two models that share nothing until the host is gone."""
    try:
        with Client.connect(socket) as client:
            while not stop.is_set():
                jobs = [client.models_download(name)["job_id"] for name in (EMBED, OTHER)]
                for job_id in jobs:
                    client.wait_for_download(job_id)
                client.models_remove(EMBED)
    except (ConnectionLost, HostUnreachable, SynapseError):
        return


@pytest.mark.timeout(1800)
def test_a_host_killed_at_random_leaves_order(tmp_path: Path) -> None:
    catalog, moments, home = write_tiny_catalog(tmp_path / "catalog"), random.Random(5), tmp_path / "home"
    cache = BlobCache(CacheLayout(home / "cache" / "models"), "test")
    with hub_of(catalog) as hub:
        for _ in range(KILLS):
            host, stop = host_of(home, catalog, hub).start(), threading.Event()
            check_order(host.client(), cache)
            working = threading.Thread(target=come_and_go, args=(host.socket, stop))
            working.start()
            time.sleep(moments.uniform(0.0, LONGEST_LIFE_S))
            host.kill()
            stop.set()
            working.join(60)
        with host_of(home, catalog, hub) as last, last.client() as client:
            for name in (EMBED, OTHER):
                client.wait_for_download(client.models_download(name)["job_id"])
                client.embed_query(name, "ab", retries=20)


def check_order(client: Client, cache: BlobCache) -> None:
    """After a start: nothing half there, nothing left over, nothing open."""
    with client:
        pinned = {digest for digest, _ in cache.pins()}
        assert set(cache.layout.digests()) == pinned
        assert not list(cache.layout.incoming.iterdir())
        assert all(cache.verify(digest) for digest in pinned)
        assert client.call("admission.status")["jobs_open"] == 0
        states = {row["id"]: row["install_state"] for row in client.call("models.catalog")["models"]}
        assert set(states.values()) <= {"installed", "not_installed"}
