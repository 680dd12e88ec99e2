"""Qwen3 checkpoints through the whole house: loaded, certified against the reference, serving on the CPU backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import InvalidRequest
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3
from synapse_host.testing.running_host import RunningHost, load_model

TEXTS = ["the tide comes in", "a", "boats float on the tide " * 40]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    write_qwen3(directory, TINY_QWEN3S["pairs"], "bf16")
    with RunningHost(tmp_path_factory.mktemp("home")) as running, running.client() as connected:
        load_model(connected, directory, engine="cpu", model_id="lane", pooling="last", dtype="f32")
        load_model(connected, directory, engine="reference", model_id="reference", pooling="last")
        yield connected


def test_the_lane_agrees_with_the_reference_and_with_itself(client: Client) -> None:
    lane, reference = (client.embed_many(name, TEXTS).vectors for name in ("lane", "reference"))
    assert np.sum(lane.astype(np.float64) * reference, axis=1).min() >= 0.999999
    alone = [client.embed_query("lane", text).vectors[0] for text in TEXTS]
    assert [vector.tobytes() for vector in alone] == [vector.tobytes() for vector in lane]
    assert np.abs(lane[0] - lane[1]).max() > 0.01


def test_pairs_are_composed_as_a_chat_and_scored_by_the_probability_of_yes(client: Client, tmp_path: Path) -> None:
    write_qwen3(tmp_path, TINY_QWEN3S["fours"], readout_ids=[7, 9])
    load_model(client, tmp_path, engine="cpu", model_id="judge", task="rerank", max_tokens=700, dtype="f32")
    documents = ["boats float", "the moon pulls", "taxes are due in may"]
    reply = client.rerank("judge", "why does the tide come in", documents)
    assert reply.score_kind == "probability"
    assert len(set(reply.scores)) == 3
    assert all(0 < score < 1 for score in reply.scores)
    assert client.rerank("judge", "why does the tide come in", documents[::-1]).scores == reply.scores[::-1]
    # The chat around a pair is a hundred characters and more, whatever is in it.
    assert min(reply.real_token_counts) > 100


def test_a_config_that_is_not_computed_is_refused_by_field(client: Client, tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
    write_qwen3(tmp_path, TINY_QWEN3S["pairs"], rope_parameters=rope)
    job = client.model_load(source="file", path=str(tmp_path), engine="cpu", model_id="scaled", pooling="last")
    with pytest.raises(InvalidRequest, match="rope_type 'yarn'"):
        client.wait_for_load(job["job_id"])
