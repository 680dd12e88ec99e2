"""A model of the direct engine through the whole house, on interpreted programs: certified, served, paused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import SynapseError
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.tokenization.model_tokenizer import ModelTokenizer

pytestmark = pytest.mark.slow
TINY = TinyBert(9, hidden=24, layers=2, heads=2, intermediate=32, vocab=99, positions=600)
INTERPRETED = {"SYNAPSE_ANE_ALLOW_INTERPRETER": "true"}
SHORT, LONG = "tea and a salad", "the tale of the last island " * 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ane")
    write_model(path / "model", TINY)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with RunningHost(folder / "home", INTERPRETED) as running, running.client() as connected:
        load_model(connected, folder / "model", engine="ane", model_id="gte", max_tokens=512)
        yield connected


def residency(client: Client) -> dict[str, Any]:
    return dict(client.call("lanes.status")["residency"])


def test_rows_are_computed_in_the_shapes_they_need_and_agree_with_the_reference(client: Client, folder: Path) -> None:
    reply = client.embed_many("gte", [LONG, SHORT])
    encode = ModelTokenizer.from_json((folder / "model" / "tokenizer.json").read_bytes(), max_tokens=512, vocab_size=99)
    rows = [np.array(text.ids, dtype=np.int32) for text in encode.encode([LONG, SHORT])]
    with loaded_model(reference_plugin, folder / "model", max_tokens=512) as model:
        wanted = reference_plugin.synapse_embed(model, batch_of(rows), ignore_progress)
    assert (np.asarray(reply.vectors) * wanted).sum(axis=1).min() > 0.9999
    shown = residency(client)
    assert {row["state"] for row in shown["shapes"]} == {"resident"}
    assert 128 in {row["shape"] for row in shown["shapes"]}
    assert shown["executables"] == 2 * len(shown["shapes"]) <= shown["max_executables"]
    assert shown["compilations"][0]["lane_id"] == "gte"
    assert shown["inventories"][0]["executables"]
    (lane,) = client.call("models.list")["models"]
    assert lane["resident_shapes"] == [row["shape"] for row in shown["shapes"]]


def test_the_probe_keeps_the_share_of_every_shape(client: Client) -> None:
    (row,) = client.probe_report()["lanes"]
    placement = row["certification"]["evidence"]["placement"]
    assert [share["shape"] for share in placement["shares"]] == [128, 256, 512]
    assert placement["floor"] == 0.9 <= placement["lowest"] < 1


def test_a_pause_ends_the_worker_and_gives_the_lock_back(client: Client) -> None:
    pid = residency(client)["worker_pid"]
    assert pid is not None
    client.call("lanes.pause", {"scope": "neural_engine", "duration_ms": 60_000, "reason": "measuring"})
    while (status := client.call("lanes.status"))["phase"] == "draining":
        pass
    assert status["hardware_free"] is True
    assert status["residency"]["worker_pid"] is None
    assert status["residency"]["shapes"] == []
    with pytest.raises(SynapseError) as refused:
        client.embed_query("gte", SHORT)
    assert refused.value.code == "lane_paused"
    client.call("lanes.resume")
    # A load longer than five seconds, on a busy machine, is told as such and goes on.
    client.embed_query("gte", SHORT, retries=20)
    assert residency(client)["worker_pid"] not in (None, pid)
