"""The product's main job: text in over the socket, vectors of the real model out, with their identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import ProbeRequired, SubstitutionRejected
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.running_host import RunningHost, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    loaded: list[str] = json.loads((FIXTURES / "minilm_texts.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def published() -> np.ndarray:
    """What transformers computes for the texts, in float32."""
    with np.load(FIXTURES / "minilm_reference.npz") as fixture:
        return np.asarray(fixture["vectors"])


@pytest.mark.parametrize(("model", "floor"), [("minilm-f32", 0.999999), ("minilm", 0.9999)])
def test_vectors_are_those_of_the_published_implementation(
    client: Client, texts: list[str], published: np.ndarray, model: str, floor: float
) -> None:
    reply = client.embed_many(model, texts)
    cosines = np.einsum("ij,ij->i", reply.vectors.astype(np.float64), published.astype(np.float64))
    print(f"{model}: min cosine {cosines.min():.8f} over {len(texts)} texts")
    assert len(texts) >= 64
    assert cosines.min() >= floor


def test_the_envelope_names_what_computed_the_vectors(client: Client) -> None:
    reply = client.embed_query("minilm-f32", "one text")
    listed = {row["model_id"]: row for row in client.models_list()["models"]}["minilm-f32"]
    assert reply.fingerprint == listed["fingerprints"][0]
    assert reply.dims == listed["dims"] == 384
    assert reply.provenance["engine"]["engine"] == "owned-cpu"
    assert reply.provenance["engine"]["build_flags"]["precision"] == "f32"
    assert reply.equivalent_to == ()
    assert listed["device_class"] == "cpu"
    assert listed["self_check"] == {"state": "not_applicable"}


def test_two_precisions_are_two_identities(client: Client) -> None:
    rows = {row["model_id"]: row for row in client.models_list()["models"]}
    assert rows["minilm"]["dtype"] in ("bf16", "f32")
    if rows["minilm"]["dtype"] == "bf16":
        assert rows["minilm"]["fingerprints"] != rows["minilm-f32"]["fingerprints"]


@pytest.mark.anyio
async def test_vectors_as_numbers_equal_vectors_as_bytes(host: RunningHost, client: Client) -> None:
    peer = await RawPeer.connect(host.socket)
    answer = await peer.ask({"id": 1, "method": "embed.query", "params": {"model": "minilm", "text": "same text"}})
    await peer.close()
    numbers = np.array(answer["result"]["vectors"][0]["vector"], dtype=np.float32)
    np.testing.assert_array_equal(numbers, client.embed_query("minilm", "same text").vectors[0])


def test_a_cut_text_is_disclosed_and_its_hashes_differ(client: Client) -> None:
    long_text, short_text = "word " * 900, "word"
    reply = client.embed_batch("minilm", [("long", long_text), ("short", short_text)])
    cut, whole = reply.truncations
    assert (cut.submitted_tokens, cut.effective_tokens, cut.truncated) == (902, 512, True)
    assert (whole.submitted_tokens, whole.effective_tokens, whole.truncated) == (3, 3, False)
    assert reply.submitted_sha256[0] == hashlib.sha256(long_text.encode()).hexdigest() != reply.content_sha256[0]
    assert reply.submitted_sha256[1] == reply.content_sha256[1]


@pytest.mark.parametrize(
    "text",
    ["", " ", "\x00", "x", "[CLS] [SEP] [PAD]", "a" * 1_000_000, "\U0001f600" * 50],
    ids=lambda text: repr(text[:20]),
)
def test_odd_but_legal_text_is_embedded(client: Client, text: str) -> None:
    reply = client.embed_query("minilm", text)
    assert np.isclose(np.linalg.norm(reply.vectors[0]), 1.0, atol=1e-3)


def test_a_model_can_be_asked_for_by_its_fingerprint(client: Client) -> None:
    named = client.embed_query("minilm", "text")
    np.testing.assert_array_equal(client.embed_query(named.fingerprint, "text").vectors, named.vectors)
    by_requirement = client.embed_query(None, "text", required_fingerprint=named.fingerprint)
    np.testing.assert_array_equal(by_requirement.vectors, named.vectors)
    with pytest.raises(SubstitutionRejected, match="f" * 64):
        client.embed_query("minilm", "text", required_fingerprint="f" * 64)


def test_a_free_form_lane_refuses_until_it_is_certified(tmp_path: Path, tiny_directory: Path) -> None:
    with RunningHost(tmp_path) as host, host.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id="tiny", certify=False)
        with pytest.raises(ProbeRequired, match="synapse-host probe tiny"):
            client.embed_query("tiny", "text")
        client.wait_for_probe(client.probe_start(["tiny"])["job_id"])
        assert client.embed_query("tiny", "text").dims == 32


def test_models_certifications_and_speed_survive_a_restart(tmp_path: Path, tiny_directory: Path) -> None:
    host = RunningHost(tmp_path)
    with host, host.client() as client:
        job = client.model_load(source="file", path=str(tiny_directory), engine="reference", model_id="tiny")
        client.wait_for_load(job["job_id"])
        client.wait_for_probe(client.probe_start(["tiny"])["job_id"])
        before = client.embed_query("tiny", "text")
        report = client.probe_report()["lanes"]
    with host, host.client() as client:
        assert client.models_list()["models"][0]["state"] == "unloaded"
        after = client.embed_query("tiny", "text", retries=20)
        assert after.module_generation == before.module_generation + 1
        assert after.fingerprint == before.fingerprint
        np.testing.assert_array_equal(after.vectors, before.vectors)
        again = client.probe_report()["lanes"]
        assert [lane["performance"] for lane in again] == [lane["performance"] for lane in report]
        assert [lane["certification"] for lane in again] == [lane["certification"] for lane in report]


def test_an_identity_that_comes_back_to_its_id_is_still_certified(
    tmp_path: Path, tiny_directory: Path, certified: Callable[[Path], Path]
) -> None:
    host = RunningHost(certified(tmp_path))

    def load(client: Client, **params: str) -> None:
        load_model(client, tiny_directory, engine="reference", model_id="tiny", certify=False, **params)

    with host, host.client() as client:
        load(client, pooling="cls")
        with pytest.raises(ProbeRequired):
            client.embed_query("tiny", "text")
    with host, host.client() as client:
        load(client)
        assert client.embed_query("tiny", "text").dims == 32


def test_minilm_is_where_the_tests_expect_it() -> None:
    assert (minilm_directory() / "model.safetensors").stat().st_size > 80_000_000
