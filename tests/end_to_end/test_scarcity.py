"""Too little of something: descriptors, patience of the event loop, memory for errors."""

from __future__ import annotations

import resource
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost, HostUnreachable
from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.testing.running_host import RunningHost

#: Bytes of a frame full of wrong items: enough to build hundreds of thousands of errors, if each were built.
WRONG_ITEMS = 500_000


def resident_mib(process: subprocess.Popen[str]) -> float:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def connections(host: RunningHost, wanted: int) -> list[Client]:
    """As many connections as the host takes, at most ``wanted``."""
    held: list[Client] = []
    with suppress(HostUnreachable, ConnectionLost, TimeoutError):
        while len(held) < wanted:
            held.append(host.client())
    return held


def test_a_host_out_of_descriptors_waits_and_serves_again(tmp_path: Path) -> None:
    with RunningHost(tmp_path) as host:
        resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE, (24, 24))
        held = connections(host, 24)
        assert len(held) < 24
        assert host.process.poll() is None
        for client in held:
            client.close()
        with host.client() as client:
            assert client.models_list()["models"] == []
        assert host.says("cannot accept a connection")


def test_a_frame_of_wrong_items_is_refused_by_its_first(host: RunningHost, client: Client) -> None:
    before = resident_mib(host.process)
    with pytest.raises(InvalidRequest, match=r"items.*1"):
        client.call("embed.batch", {"model": "minilm", "items": [1] * WRONG_ITEMS})
    assert resident_mib(host.process) - before < 150


def test_a_text_past_the_limit_is_refused_with_both_numbers(client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.embed_query("minilm", "a" * (2 * 2**20 + 1))
    assert refused.value.details == {"item_id": "query", "characters": 2**21 + 1, "max_text_chars": 2**21}


def test_failed_loads_keep_no_memory(tmp_path: Path, tiny_directory: Path) -> None:
    wrong = "0" * 64
    with RunningHost(tmp_path) as host, host.client() as client:

        def fail(times: int) -> float:
            for _ in range(times):
                job = client.model_load(source="file", path=str(tiny_directory), engine="cpu", expected_digest=wrong)
                with pytest.raises(ArtifactInvalid):
                    client.wait_for_load(job["job_id"])
            return resident_mib(host.process)

        settled = fail(20)
        assert fail(60) - settled < 20
