"""microllm.oneshot through a real host with the llama backend: the worker's tokens, their text, and every refusal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_llama_worker import plugin
from tokenizers import Tokenizer

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EXCEPTIONS, ArtifactInvalid, InvalidRequest, SubstitutionRejected, SynapseError
from synapse_host.testing.command_runs import run_synapse
from synapse_host.testing.gguf_runs import Reports, loaded_gguf
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_bert_gguf, write_tiny_decoder
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = pytest.mark.slow

TINY = TinyDecoder(seed=3, positions=512)
BERT = TinyBert(7, hidden=32, layers=1, heads=4, intermediate=48, vocab=300, positions=40)
PROMPTS = [f"the {word} and the thing in {number}" for number, word in enumerate(["cat", "añb", "\n", "🙂"] * 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_decoder(directory, TINY)
    return directory


@pytest.fixture(scope="module")
def host(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    with RunningHost(tmp_path_factory.mktemp("home")) as running:
        with running.client() as client:
            load_model(client, folder, engine="llama", task="generate", model_id="tiny", certify=False)
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


def refusal(call: Any) -> SynapseError:
    with pytest.raises(SynapseError) as refused:
        call()
    return refused.value


def test_the_tokens_are_the_engines_and_the_text_is_theirs(client: Client, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    replies = [client.generate("tiny", prompt, max_tokens=64) for prompt in PROMPTS]
    with loaded_gguf(plugin, folder / "model.gguf", "llama", "generate", 512) as model:
        for prompt, reply in zip(PROMPTS, replies, strict=True):
            ids = tokenizer.encode(prompt).ids
            made = plugin.synapse_generate(model, np.array(ids, np.int32), {"max_tokens": 64}, Reports())
            assert list(reply.generated_token_ids) == made.token_ids
            assert (reply.n_prompt, reply.n_gen) == (len(ids), len(made.token_ids))
            assert reply.finish_reason == made.finish_reason
            assert reply.text == tokenizer.decode([*ids, *made.token_ids])[len(tokenizer.decode(ids)) :]
            assert reply.truncation.truncated is False


def test_the_answer_has_the_identity_and_all_fields(client: Client) -> None:
    answer = client.call("microllm.oneshot", {"model_id": "tiny", "prompt": "in the", "max_tokens": 3, "grammar": ""})
    (row,) = [row for row in client.models_list()["models"] if row["model_id"] == "tiny"]
    assert answer["fingerprint"] == row["fingerprints"][0]
    assert "certified" not in row
    assert (row["task"], answer["dims"], answer["provenance"]["engine"]["engine"]) == (
        "generate",
        0,
        "llama.cpp-worker",
    )
    assert (answer["n_gen"], len(answer["generated_token_ids"]), answer["finish_reason"]) == (3, 3, "length")
    assert answer["real_token_counts"] == [answer["n_prompt"]]


def test_a_long_prompt_is_cut_to_what_the_reply_leaves_and_disclosed(client: Client) -> None:
    reply = client.generate("tiny", "x" * 600, max_tokens=500)
    assert (reply.truncation.submitted_tokens, reply.truncation.effective_tokens) == (600, 12)
    assert (reply.truncation.truncated, reply.n_prompt) == (True, 12)


@pytest.mark.parametrize(("context", "remedy"), [(1, "load it with max_tokens of 2 or more"), (2, "ask for at most 1")])
def test_a_context_without_room_for_a_prompt_says_what_helps(
    client: Client, folder: Path, context: int, remedy: str
) -> None:
    load_model(client, folder, engine="llama", task="generate", model_id="short", certify=False, max_tokens=context)
    refused = refusal(lambda: client.generate("short", "the", max_tokens=context))
    assert (refused.code, remedy in refused.message) == ("invalid_request", True)


def test_what_is_refused_and_how(client: Client) -> None:
    ask = {"model": "tiny", "prompt": "the", "max_tokens": 4}

    def of(**changes: Any) -> SynapseError:
        return refusal(lambda: client.call("microllm.oneshot", {**ask, **changes}))

    ceiling = of(max_tokens=513)
    assert (ceiling.code, "513" in ceiling.message, "512" in ceiling.message) == ("invalid_request", True, True)
    assert of(grammar='root ::= "a"').code == "grammar_disabled"
    assert of(max_tokens=512).details == {"max_tokens": 512, "context_tokens": 512}
    assert of(max_tokens=0).code == "invalid_request"
    assert of(temperature=1).code == "invalid_request"
    assert of(prompt="").code == "invalid_request"
    assert of(prompt="\ud800").code == "invalid_request"
    assert of(model_id="other").code == "invalid_request"
    assert of(model="none").code == "unknown_model"
    assert isinstance(of(required_fingerprint="0" * 64), SubstitutionRejected)
    nameless = refusal(lambda: client.call("microllm.oneshot", {"prompt": "a", "max_tokens": 1}))
    assert (nameless.code, "generate has no default" in nameless.message) == ("invalid_request", True)
    assert refusal(lambda: client.embed_query("tiny", "a")).code == "invalid_request"
    assert refusal(lambda: client.probe_start(["tiny"])).code == "invalid_request"
    assert client.generate("tiny", "the", max_tokens=4).n_gen == 4


def test_a_deadline_ends_the_wait_and_not_the_worker(client: Client) -> None:
    late = refusal(lambda: client.generate("tiny", "the " * 50, max_tokens=300, deadline_ms=30))
    assert late.code == "deadline_exceeded"
    assert client.generate("tiny", "the", max_tokens=2).n_gen == 2


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_free_form_embedding_and_reranking_stay_refused(client: Client, tmp_path: Path, task: str) -> None:
    """Before any file is read: the folder is not even there."""

    def load() -> None:
        load_model(client, tmp_path / "nowhere", engine="llama", task=task, certify=False)

    assert isinstance(refused := refusal(load), InvalidRequest)
    assert "vouch" in refused.message


@pytest.mark.parametrize("spoil", ["cut", "magic", "config", "two files", "encoder"])
def test_a_file_that_cannot_be_loaded_is_told(client: Client, tmp_path: Path, spoil: str) -> None:
    write_tiny_decoder(tmp_path, TINY)
    file, params = tmp_path / "model.gguf", {}
    data = file.read_bytes()
    if spoil == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif spoil == "magic":
        file.write_bytes(b"GGML" + data[4:])
    elif spoil == "config":
        params = {"files": {"config": "other.json"}}
    elif spoil == "two files":
        (tmp_path / "second.gguf").write_bytes(data)
    else:
        write_bert_gguf(file, BERT.config(), BERT.tensors(), list(tiny_tokenizer(BERT.vocab)["model"]["vocab"]))
        (tmp_path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(BERT.vocab)), encoding="utf-8")

    def load() -> None:
        load_model(client, tmp_path, engine="llama", task="generate", certify=False, **params)

    refused = refusal(load)
    if spoil in ("cut", "magic"):
        assert isinstance(refused, ArtifactInvalid)
        assert (refused.details or {})["file"] == "model.gguf"
    else:
        assert isinstance(refused, InvalidRequest)
    if spoil == "two files":
        load_model(client, tmp_path, engine="llama", task="generate", certify=False, files={"model": "second.gguf"})


def test_a_tokenizer_with_a_token_that_the_model_has_no_row_for_is_served(client: Client, tmp_path: Path) -> None:
    """As the one published with Gemma 3: its token for images is no row of a GGUF file."""
    write_tiny_decoder(tmp_path, TINY)
    document = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"].append({**document["added_tokens"][0], "id": len(TINY.tokens), "content": "<image>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    load_model(client, tmp_path, engine="llama", task="generate", model_id="images", certify=False)
    assert client.generate("images", "the", max_tokens=4).text == client.generate("tiny", "the", max_tokens=4).text
    assert client.generate("images", "<image>", max_tokens=1).n_prompt == len("<image>")


def test_the_command_line_generates(host: RunningHost) -> None:
    plain = run_synapse("generate", "tiny", "in the", "--max-tokens", "5", home=host.home)
    document = json.loads(
        run_synapse("generate", "tiny", "in the", "--max-tokens", "5", "--json", home=host.home).stdout
    )
    assert (plain.returncode, plain.stdout) == (0, document["text"] + "\n")
    assert (document["n_gen"], len(document["generated_token_ids"])) == (5, 5)
    refused = run_synapse("generate", "tiny", "a", "--max-tokens", "600", home=host.home)
    assert refused.returncode != 0
    assert "600" in refused.stderr


def test_the_command_line_loads_one_file_of_several(host: RunningHost, client: Client, tmp_path: Path) -> None:
    write_tiny_decoder(tmp_path, TINY)
    (tmp_path / "second.gguf").write_bytes((tmp_path / "model.gguf").read_bytes())
    how = ("--engine", "llama", "--task", "generate", "--id", "one-of-two")
    several = run_synapse("load", str(tmp_path), *how, home=host.home)
    assert (several.returncode, "holds 2 GGUF files" in several.stderr) == (1, True)
    loaded = run_synapse("load", str(tmp_path / "second.gguf"), *how, home=host.home)
    assert loaded.returncode == 0, loaded.stderr
    assert client.generate("one-of-two", "the", max_tokens=4).text == client.generate("tiny", "the", max_tokens=4).text
    for path in (tmp_path, tmp_path / "second.gguf"):
        elsewhere = run_synapse("load", str(path), "--task", "generate", home=host.home)
        assert "is a GGUF file and this engine reads none; choose one that does" in elsewhere.stderr
    missing = run_synapse("load", str(tmp_path / "third.gguf"), *how, home=host.home)
    assert "'third.gguf' does not exist" in missing.stderr
    file = tmp_path / "second.gguf"
    as_path = refusal(lambda: load_model(client, file, engine="llama", task="generate", certify=False))
    assert "is a file and no directory" in as_path.message


def test_a_restarted_host_still_has_the_model(folder: Path, tmp_path: Path) -> None:
    with RunningHost(tmp_path) as first, first.client() as client:
        load_model(client, folder, engine="llama", task="generate", model_id="kept", certify=False)
        before = client.generate("kept", "the", max_tokens=8)
    with RunningHost(tmp_path) as second, second.client() as client:
        assert client.generate("kept", "the", max_tokens=8).text == before.text


def test_a_killed_worker_ends_in_one_typed_error_and_comes_back(client: Client) -> None:
    (lane,) = [row for row in client.call("admission.status")["health"]["lanes"] if row["model_id"] == "tiny"]
    before = client.generate("tiny", "the", max_tokens=4)
    os.kill(lane["worker_pid"], signal.SIGKILL)
    for _ in range(2):
        try:
            after = client.generate("tiny", "the", max_tokens=4)
        except EXCEPTIONS["engine_crashed"]:
            continue
        break
    assert after.text == before.text
