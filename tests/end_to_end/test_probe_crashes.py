"""A worker that dies while a certified model is probed again, and one that computes nonsense: one of them counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed, NotCertified, QueueFull
from synapse_host.testing.running_host import RunningHost, load_model, python_path

MODEL, TEXT = "tiny", "the tide came in"
#: A worker whose id matches the expression in the file dies, or computes zeros, at its next batch or self-check.
SPOILT = """
import os, re, sys
from pathlib import Path
if "synapse_host.worker" in sys.orig_argv:
    from synapse_host.worker import hook_calls
    from synapse_host.worker import embedding, self_checking
    orders = Path(__file__).with_name("orders")
    def spoiling(sound):
        def spoilt(*given):
            deed, _, whose = orders.read_text().partition(" ")
            if whose and re.fullmatch(whose, os.environ["SYNAPSE_WORKER_ID"]):
                if deed == "die":
                    os._exit(9)
                from synapse_host.hookspecs import PluginError
                raise PluginError("zero_output", "item 0 is all zeros")
            return sound(*given)
        return spoilt
    embedding.embed = spoiling(embedding.embed)
    self_checking.self_check = spoiling(self_checking.self_check)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe-crashes")
    (folder / "sitecustomize.py").write_text(SPOILT)
    (folder / "orders").write_text("")
    return folder


@pytest.fixture(scope="module")
def host(folder: Path, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    settings = {"SYNAPSE_PROBE_MAX_JOBS": "1"}
    with RunningHost(certified(folder / "home"), python_path(folder) | settings) as running:
        yield running


def known(client: Client) -> Any:
    """What the host knows of the model: certification and speed."""
    (lane,) = [lane for lane in client.probe_report()["lanes"] if lane["model_id"] == MODEL]
    return lane["certification"], lane["performance"]


@pytest.mark.parametrize(
    "whose", [r"synapse-reference-tiny-\d+", r"synapse-reference-tiny-magnifier-\d+", r".*-reference-\d+"]
)
def test_a_death_while_measuring_leaves_what_was_known(host: RunningHost, folder: Path, whose: str) -> None:
    with host.client() as client:
        client.embed_query(MODEL, TEXT)
        before = known(client)
        assert before[0]["status"] == "certified"
        (folder / "orders").write_text(f"die {whose}")
        job = client.probe_start([MODEL])["job_id"]
        with pytest.raises(EngineCrashed, match="closed the connection"):
            client.wait_for_probe(job)
        assert client.call("probe.status", {"job_id": job})["state"] == "failed_transient"
        (folder / "orders").write_text("")
        assert known(client) == before
        assert client.embed_query(MODEL, TEXT).dims == 32
    with host.client() as client:
        assert known(client) == before


def test_a_checkpoint_of_which_the_reference_makes_no_vector_is_the_reason(host: RunningHost, folder: Path) -> None:
    with host.client() as client:
        (folder / "orders").write_text(r"lie .*-reference-\d+")
        client.wait_for_probe(client.probe_start([MODEL])["job_id"])
        (folder / "orders").write_text("")
        certification, _ = known(client)
        assert certification["status"] == "uncertified"
        assert "the reference's own numbers of this checkpoint are none" in certification["reason"]
        assert "weights are suspect" in certification["reason"]
        assert "another dtype" not in certification["reason"]
        # Sound again, and while it is measured nobody else's probe begins.
        job = client.probe_start([MODEL])["job_id"]
        with pytest.raises(QueueFull, match="1 probe jobs are in progress"):
            client.probe_start([MODEL])
        client.wait_for_probe(job)
        assert known(client)[0]["status"] == "certified"


def test_one_failure_keeps_no_other_model_from_its_probe(host: RunningHost, folder: Path, tiny_directory: Path) -> None:
    with host.client() as client:
        load_model(client, tiny_directory, certify=False, engine="reference", model_id="other")
        (folder / "orders").write_text(r"die synapse-reference-tiny-\d+")
        job = client.probe_start([MODEL, "other"])["job_id"]
        with pytest.raises(EngineCrashed) as crash:
            client.wait_for_probe(job)
        (folder / "orders").write_text("")
        assert (crash.value.details or {})["model_id"] == MODEL
        (found,) = client.call("probe.status", {"job_id": job})["lanes"]
        assert (found["model_id"], found["certified"]) == ("other", True)
        client.model_unload("other")


def test_output_that_is_no_vector_does_take_it_away(host: RunningHost, folder: Path) -> None:
    with host.client() as client:
        before = known(client)
        (folder / "orders").write_text(r"lie synapse-reference-tiny-\d+")
        client.wait_for_probe(client.probe_start([MODEL])["job_id"])
        after = known(client)
        assert (before[0]["status"], after[0]["status"]) == ("certified", "uncertified")
        with pytest.raises(NotCertified):
            client.embed_query(MODEL, TEXT)
