"""Query and documents in over the socket, raw scores of a real cross-encoder out, with their identity."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.async_client import AsyncClient
from synapse_host.client.blocking_client import Client
from synapse_host.errors import InvalidRequest, ProbeRequired, SubstitutionRejected, SynapseError
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.command_runs import run_synapse
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.tokenization.pair_template import PAIR
from synapse_host.tokenization.pairs import PairTokenizer

MODEL = TinyBertReranker(seed=41, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130)
QUERY = "where do the boats go at night"
DOCUMENTS = [f"{place} boats lie in the harbour, {'and nobody sails ' * (place % 7)}" for place in range(40)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reranker") / "tiny-reranker"
    write_model(path, MODEL)
    return path


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[RunningHost]:
    """A host with the tiny reranker on the cpu lane, certified, and one that was never probed."""
    with RunningHost(tmp_path_factory.mktemp("home")) as running:
        with running.client() as client:
            load_model(client, directory, engine="cpu", model_id="ranker", task="rerank", dtype="f32", max_tokens=96)
            load_model(client, directory, engine="reference", model_id="raw", task="rerank", certify=False)
        yield running


@pytest.fixture
def client(ranking: RunningHost) -> Iterator[Client]:
    with ranking.client() as connected:
        yield connected


def reference_scores(directory: Path, query: str, documents: list[str]) -> np.ndarray:
    """The scores of the numpy reference, without a host."""
    data = (directory / "tokenizer.json").read_bytes()
    pairs = PairTokenizer.from_json(data, template=PAIR, max_tokens=96, vocab_size=MODEL.vocab)
    rows = [np.array(pair.ids, np.int32) for pair in pairs.compose(query, documents)]
    runtime = {"operation": "rerank", "pair_separator": str(pairs.template.separator)}
    with loaded_model(reference_plugin, directory, max_tokens=96, runtime_config=runtime) as model:
        return np.asarray(reference_plugin.synapse_rerank(model, rows, ignore_progress))


def test_scores_are_those_of_the_reference_in_the_order_given(client: Client, directory: Path) -> None:
    reply = client.rerank("ranker", QUERY, DOCUMENTS)
    wanted = reference_scores(directory, QUERY, DOCUMENTS)
    assert len(set(reply.scores)) > 30
    assert np.abs(np.array(reply.scores) - wanted).max() <= 1e-4
    assert reply.order() == sorted(range(40), key=lambda place: -reply.scores[place])
    backwards = client.rerank("ranker", QUERY, DOCUMENTS[::-1])
    assert backwards.scores == reply.scores[::-1]


def test_a_score_has_the_same_bits_alone_and_in_any_list(client: Client) -> None:
    together = client.rerank("ranker", QUERY, DOCUMENTS).scores
    for place in (0, 3, 17, 39):
        assert client.rerank("ranker", QUERY, [DOCUMENTS[place]]).scores == (together[place],)
        assert client.rerank("ranker", QUERY, DOCUMENTS[place : place + 5]).scores == together[place : place + 5]


def test_the_answer_names_its_identity_and_kind(client: Client) -> None:
    answer = client.call("rerank.score", {"model_id": "ranker", "query": QUERY, "candidates": DOCUMENTS[:20]})
    listed = {row["model_id"]: row for row in client.models_list()["models"]}["ranker"]
    assert answer["fingerprint"] == listed["fingerprints"][0]
    assert answer["dims"] == 1
    assert "dims" not in listed
    assert listed["task"] == "rerank"
    assert answer["score_kind"] == "logit"
    assert answer["work_class"] == "interactive"
    assert answer["provenance"]["engine"]["engine"] == "owned-cpu"
    more = client.call("rerank.score", {"model": "ranker", "query": QUERY, "candidates": DOCUMENTS[:21]})
    assert more["work_class"] == "bulk"
    assert more["scores"][:20] == answer["scores"]
    assert client.rerank(answer["fingerprint"], QUERY, DOCUMENTS[:1]).scores[0] == answer["scores"][0]


def test_only_the_document_is_cut_and_the_cut_is_told(client: Client) -> None:
    reply = client.rerank("ranker", "boats", ["short", "x " * 500, ""])
    assert [cut.truncated for cut in reply.truncations] == [False, True, False]
    assert [cut.effective_tokens for cut in reply.truncations] == list(reply.real_token_counts)
    assert reply.truncations[1].effective_tokens == 96 < 500 < reply.truncations[1].submitted_tokens
    assert reply.truncations[2].effective_tokens == 8
    again = client.rerank("ranker", "boats", ["x " * 600])
    assert again.scores[0] == reply.scores[1]


@pytest.mark.parametrize("text", ["", "   ", "\0", "中文", "[SEP] [CLS] [PAD]", "a" * 100_000])
def test_every_text_is_legal_as_a_document(client: Client, text: str) -> None:
    (score,) = client.rerank("ranker", "boats", [text]).scores
    assert np.isfinite(score)


def refused(client: Client, **params: Any) -> SynapseError:
    with pytest.raises(SynapseError) as error:
        client.call("rerank.score", {"model": "ranker", "query": "q", "candidates": ["d"], **params})
    return error.value


@pytest.mark.parametrize(
    ("params", "code", "said"),
    [
        ({"candidates": []}, "invalid_request", "no candidates"),
        ({"candidates": [1]}, "invalid_request", "params.candidates[0]"),
        ({"candidates": "d"}, "invalid_request", "params.candidates"),
        ({"query": None}, "invalid_request", "params.query"),
        ({"top_n": 3}, "invalid_request", "top_n"),
        ({"query": "q " * 500}, "invalid_request", "leaves none for a candidate"),
        ({"model_id": "raw"}, "invalid_request", "name two models"),
        ({"model": "nobody"}, "unknown_model", "nobody"),
        ({"model": "raw"}, "probe_required", "never certified"),
        ({"required_fingerprint": "0" * 64}, "substitution_rejected", "not the required"),
        ({"deadline_ms": 0}, "invalid_request", "deadline_ms"),
    ],
)
def test_bad_input_is_refused_by_name(client: Client, params: dict[str, Any], code: str, said: str) -> None:
    error = refused(client, **params)
    assert (error.code, said in error.message) == (code, True), error.message
    assert client.rerank("ranker", "q", ["d"]).scores


def test_too_many_characters_name_their_candidate(client: Client) -> None:
    error = refused(client, candidates=["d", "d" * 3_000_000])
    assert (error.details or {})["item_id"] == "1"


def test_more_candidates_than_memory_is_set_aside_for_are_refused_with_both_numbers(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="host admits at most 67108864"):
        client.rerank("ranker", QUERY, [""] * 17_000)


def test_a_model_with_a_short_limit_can_be_certified(client: Client, directory: Path) -> None:
    load_model(client, directory, engine="cpu", model_id="short", task="rerank", dtype="f32", max_tokens=48)
    assert len(client.rerank("short", QUERY, DOCUMENTS).scores) == len(DOCUMENTS)


def test_a_model_serves_its_own_task_alone(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="is for rerank, not embed"):
        client.embed_query("ranker", "text")
    with pytest.raises((ProbeRequired, SubstitutionRejected)):
        client.rerank("raw", "q", ["d"])


def test_an_encoder_without_a_head_is_not_loaded_for_reranking(client: Client, tiny_directory: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.json names 2 labels and a reranker has 1"):
        load_model(client, tiny_directory, engine="cpu", model_id="headless", task="rerank", certify=False)


@pytest.mark.anyio
async def test_both_clients_say_the_same(ranking: RunningHost, client: Client) -> None:
    async with await AsyncClient.connect(ranking.socket) as awaited:
        reply = await awaited.rerank("ranker", QUERY, DOCUMENTS[:3])
    assert reply == client.rerank("ranker", QUERY, DOCUMENTS[:3])
    with pytest.raises(ValueError, match="no documents"):
        client.rerank("ranker", QUERY, [])
    with pytest.raises(TypeError, match="one string"):
        client.rerank("ranker", QUERY, "document")


@pytest.mark.anyio
async def test_a_lone_surrogate_names_its_candidate(ranking: RunningHost) -> None:
    peer = await RawPeer.connect(ranking.socket)
    await peer.send_frame(
        b'{"id": 1, "method": "rerank.score", "params": {"model": "ranker", "query": "q", '
        b'"candidates": ["fine", "broken \\ud800"]}}'
    )
    answer = await peer.receive()
    await peer.close()
    assert answer["error"]["code"] == "invalid_request"
    assert "params.candidates[1]" in answer["error"]["message"]


def test_the_command_scores_files_and_lines(ranking: RunningHost, client: Client, tmp_path: Path) -> None:
    files = []
    for place, text in enumerate(DOCUMENTS[:3]):
        (tmp_path / f"{place}.txt").write_text(text)
        files.append(str(tmp_path / f"{place}.txt"))
    wanted = client.rerank("ranker", QUERY, DOCUMENTS[:3])
    done = run_synapse("rerank", "ranker", QUERY, *files, "--json", home=ranking.home)
    document = json.loads(done.stdout)
    assert [entry["score"] for entry in document["scores"]] == list(wanted.scores)
    assert [entry["document"] for entry in document["scores"]] == files
    assert document["score_kind"] == "logit"
    shown = run_synapse("rerank", "ranker", QUERY, home=ranking.home, typed="\n".join(DOCUMENTS[:3]).encode())
    names = [line.split("\t")[1] for line in shown.stdout.splitlines()[1:]]
    assert names == [str(place + 1) for place in wanted.order()]


def test_a_restarted_host_serves_the_same_scores(ranking: RunningHost) -> None:
    with ranking.client() as client:
        before = client.rerank("ranker", QUERY, DOCUMENTS[:4])
    ranking.stop()
    ranking.start()
    with ranking.client() as client:
        after = client.rerank("ranker", QUERY, DOCUMENTS[:4], retries=20)
    assert (after.scores, after.fingerprint) == (before.scores, before.fingerprint)
