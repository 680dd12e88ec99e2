"""A host with the developers' switch loads, certifies and serves on MLX's CPU device; without it, it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import BackendUnavailable, SynapseError
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac serves on the device this is to refuse"),
]

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
TEXTS = ["the tide comes in", "a", "boats float on the tide " * 12]
SWITCH = {"SYNAPSE_METAL_ALLOW_CPU": "1"}
#: The clients' copies of the models on the reference, which vectors are compared with.
REFERENCE = "on-reference"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "bert").mkdir()
    write_model(folder / "bert", TINY, "f32")
    small = TinyQwen3(5, 32, 1, 4, 2, 8, 48, 259, 400, tied=True)
    write_qwen3(folder / "judge", small, readout_ids=[7, 9])
    write_qwen3(folder / "writer", small)
    config = folder / "writer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "eos_token_id": 258}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def host(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    with RunningHost(tmp_path_factory.mktemp("home"), SWITCH) as running:
        with running.client() as client:
            load_model(client, models / "bert", engine="metal", model_id="tiny", max_tokens=64)
            load_model(client, models / "bert", engine="reference", model_id=REFERENCE, max_tokens=64)
        yield running


def listed(client: Client, model: str) -> dict[str, Any]:
    (row,) = [row for row in client.models_list()["models"] if row["model_id"] == model]
    found: dict[str, Any] = row
    return found


def test_vectors_agree_with_the_reference_and_with_themselves(host: RunningHost) -> None:
    with host.client() as client:
        reply, wanted = (client.embed_many(name, TEXTS) for name in ("tiny", REFERENCE))
        alone = [client.embed_query("tiny", text).vectors[0] for text in TEXTS]
    assert np.sum(reply.vectors.astype(np.float64) * wanted.vectors, axis=1).min() >= 0.999999
    assert [vector.tobytes() for vector in alone] == [vector.tobytes() for vector in reply.vectors]


def test_the_device_shows_in_the_reply_and_in_the_identity(host: RunningHost, models: Path) -> None:
    with host.client() as client:
        reply = client.embed_query("tiny", "a")
        engine = reply.provenance["engine"]
        assert (engine["engine"], engine["build_flags"]["device"]) == ("owned-metal", "cpu")
        row = listed(client, "tiny")
        assert (row["device_class"], row["certified"], row["dtype"]) == ("cpu", True, "f32")


def test_a_reranker_scores_and_a_decoder_writes(host: RunningHost, models: Path) -> None:
    with host.client() as client:
        load_model(client, models / "judge", engine="metal", model_id="judge", task="rerank", max_tokens=400)
        documents = ["boats float", "the moon pulls", "taxes are due in may"]
        scores = client.rerank("judge", "why does the tide come in", documents).scores
        assert client.rerank("judge", "why does the tide come in", documents[::-1]).scores == scores[::-1]
        load_model(
            client, models / "writer", engine="owned-metal-decode", model_id="writer", task="generate", max_tokens=256
        )
        load_model(client, models / "writer", engine="reference", model_id="wanted", task="generate", max_tokens=256)
        made, wanted = (client.generate(name, "the tide", max_tokens=24) for name in ("writer", "wanted"))
    assert made.generated_token_ids == wanted.generated_token_ids


def test_without_the_switch_a_load_is_refused_for_the_platform(models: Path, tmp_path: Path) -> None:
    with RunningHost(tmp_path / "home") as running, running.client() as client:
        for engine in ("metal", "owned-metal-decode"):
            job = client.model_load(source="file", path=str(models / "bert"), engine=engine, model_id="tiny")
            with pytest.raises(BackendUnavailable, match="darwin-arm64") as refused:
                client.wait_for_load(job["job_id"])
            (row,) = (refused.value.details or {})["backends"]
            assert row["reason"] == "not_supported_on_platform"


def test_a_model_of_the_cpu_device_is_not_served_once_the_switch_is_gone(models: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with RunningHost(home, SWITCH) as running, running.client() as client:
        load_model(client, models / "bert", engine="metal", model_id="tiny", max_tokens=64)
    with RunningHost(home) as running, running.client() as client:
        # The worker says that it is another than the model was registered with, so the host looks at the backend again.
        with pytest.raises(SynapseError, match=r"'metal' cannot run here") as refused:
            client.embed_query("tiny", "a")
        (backend,) = (refused.value.details or {})["backends"]
        assert (refused.value.code, backend["reason"]) == ("backend_unavailable", "not_supported_on_platform")
