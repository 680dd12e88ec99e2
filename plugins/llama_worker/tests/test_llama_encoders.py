"""BERT encoders as GGUF: vectors near transformers', in order, for any number of rows; pairs scored as composed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_llama_worker import plugin

from synapse_host.hookspecs import PluginError
from synapse_host.model_files.safetensors_header import read_safetensors_header
from synapse_host.testing.engine_runs import batch_of
from synapse_host.testing.gguf_runs import Reports, loaded_gguf
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_bert_gguf, write_tiny_decoder
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
TINY = TinyBert(7, hidden=32, layers=2, heads=4, intermediate=48, vocab=300, positions=64)
CLS, SEP = 2, 3


def write_minilm(file: Path) -> None:
    folder = minilm_directory()
    weights = folder / "model.safetensors"
    with weights.open("rb") as opened:
        entries = read_safetensors_header(opened.fileno(), weights.stat().st_size)
        data = opened.read()
    tensors = {
        name: np.frombuffer(data[entry.start : entry.end], "<f4").reshape(entry.shape)
        for name, entry in entries.items()
        if entry.dtype == "F32"
    }
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    write_bert_gguf(file, json.loads((folder / "config.json").read_text(encoding="utf-8")), tensors, tokens)


def write_tiny(file: Path, *, classifier: bool = False) -> None:
    tokens = list(tiny_tokenizer(TINY.vocab)["model"]["vocab"])
    rng = np.random.default_rng(1)
    head = rng.standard_normal((1, TINY.hidden)).astype(np.float32), np.array([0.5], np.float32)
    write_bert_gguf(file, TINY.config(), TINY.tensors(), tokens, classifier=head if classifier else None)


def rows_of(counts: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(5, TINY.vocab, count).astype(np.int32) for count in counts]


def embed(model: Any, rows: list[np.ndarray], **way_out: Any) -> Any:
    return plugin.synapse_embed(model, batch_of(rows, **way_out), Reports())


def test_minilm_is_near_transformers(tmp_path: Path) -> None:
    write_minilm(tmp_path / "minilm.gguf")
    recorded = np.load(FIXTURES / "minilm_reference.npz")
    rows = np.split(recorded["ids"].astype(np.int32), np.cumsum(recorded["lengths"])[:-1])
    with loaded_gguf(plugin, tmp_path / "minilm.gguf", "bert", "embed", 512) as model:
        vectors = embed(model, rows)
    cosines = (vectors * recorded["vectors"]).sum(axis=1) / np.linalg.norm(recorded["vectors"], axis=1)
    assert cosines.min() >= 0.999, f"least cosine {cosines.min():.6f}"


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
def test_rows_come_back_in_order_whatever_their_number(tmp_path: Path, count: int) -> None:
    write_tiny(tmp_path / "m.gguf")
    rows = rows_of([1 + place * 7 % 60 for place in range(count)])
    with loaded_gguf(plugin, tmp_path / "m.gguf", "bert", "embed", 64) as model:
        together = embed(model, rows)
        alone = np.concatenate([embed(model, [row]) for row in rows])
    assert together.shape == (count, TINY.hidden)
    agreement = together @ alone.T
    assert (np.diag(agreement) > 0.9999).all()
    assert agreement.argmax(axis=1).tolist() == list(range(count))


def test_progress_counts_tokens(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.gguf")
    heard = Reports()
    with loaded_gguf(plugin, tmp_path / "m.gguf", "bert", "embed", 64) as model:
        plugin.synapse_embed(model, batch_of(rows_of([60] * 20)), heard)
    # Eight rows of 60 tokens fit a call of 512.
    assert heard.heard == [(480, "inference"), (960, "inference"), (1200, "inference")]


def test_pairs_are_composed_and_scored_in_order(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.gguf", classifier=True)
    query, *candidates = rows_of([4, 9, 1, 20, 3])
    with loaded_gguf(plugin, tmp_path / "m.gguf", "bert", "rerank", 64) as model:
        scores = plugin.synapse_rerank_pairs(model, query, candidates, Reports())
        pairs = [np.concatenate([[CLS], query, [SEP], one, [SEP]]).astype(np.int32) for one in candidates]
        whole = plugin.synapse_rerank(model, pairs, Reports())
        turned = plugin.synapse_rerank_pairs(model, query, candidates[::-1], Reports())
    assert scores.dtype == np.float32
    assert scores.tolist() == whole.tolist()
    assert len({round(float(score), 4) for score in scores}) == 4
    assert np.allclose(turned[::-1], scores, atol=1e-4)


def test_a_pair_past_the_limit_is_refused_by_its_place(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.gguf", classifier=True)
    query, *candidates = rows_of([4, 9, 58])
    with (
        loaded_gguf(plugin, tmp_path / "m.gguf", "bert", "rerank", 64) as model,
        pytest.raises(PluginError, match='item "1": 65 tokens') as refusal,
    ):
        plugin.synapse_rerank_pairs(model, query, candidates, Reports())
    assert refusal.value.code == "invalid_request"


def test_a_file_without_a_classifier_is_no_reranker(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.gguf")
    with (
        pytest.raises(PluginError, match=r"cls\.output\.weight") as refusal,
        loaded_gguf(plugin, tmp_path / "m.gguf", "bert", "rerank", 64),
    ):
        pass
    assert refusal.value.code == "head_tensor_missing"


@pytest.mark.parametrize(("family", "operation"), [("qwen3", "rerank"), ("llama", "rerank"), ("bert", "generate")])
def test_an_architecture_is_refused_what_it_cannot_do(tmp_path: Path, family: str, operation: str) -> None:
    """Qwen3 rerankers among them: llama.cpp would score them without their template."""
    if family == "bert":
        write_tiny(tmp_path / "model.gguf")
    else:
        write_tiny_decoder(tmp_path, TinyDecoder(seed=1, architecture=family))
    with (
        pytest.raises(PluginError, match=family) as refusal,
        loaded_gguf(plugin, tmp_path / "model.gguf", family, operation, 64),
    ):
        pass
    assert refusal.value.code == "model_unsupported"


def test_a_decoder_embeds_by_its_last_token(tmp_path: Path) -> None:
    write_tiny_decoder(tmp_path, TinyDecoder(seed=1, architecture="qwen3"))
    rows = rows_of([3, 200, 17])
    rows = [np.minimum(row, 260) for row in rows]
    with loaded_gguf(plugin, tmp_path / "model.gguf", "qwen3", "embed", 256, pooling="last") as model:
        together = embed(model, rows, pooling="last")
        alone = np.concatenate([embed(model, [row], pooling="last") for row in rows])
    assert np.abs(together - alone).max() < 2e-3
