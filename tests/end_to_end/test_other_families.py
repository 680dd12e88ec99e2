"""XLM-RoBERTa and ModernBERT through the whole house: loaded, certified, served as their family computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import InvalidRequest
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS, unigram_tokenizer
from synapse_host.testing.models.tiny_models import TinyModel, tiny_tokenizer, write_model
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.tokenization.model_tokenizer import ModelTokenizer

TEXTS = ["tea", "the tale of the last island " * 6, "", "a salad and some tea ☃"]
XLM_ROBERTA, MODERNBERT = TINY_XLM_ROBERTAS["two_layers"], TINY_MODERNBERTS["biased"]
MODELS: Mapping[str, tuple[TinyModel, Mapping[str, Any]]] = {
    "xlm-roberta": (XLM_ROBERTA, unigram_tokenizer(XLM_ROBERTA.vocab)),
    "modernbert": (MODERNBERT, tiny_tokenizer(MODERNBERT.vocab)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("families")
    for name, (model, tokenizer) in MODELS.items():
        write_model(path / name, model, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with RunningHost(folder / "home") as running, running.client() as connected:
        yield connected


@pytest.mark.parametrize("name", MODELS)
def test_a_text_gets_the_vector_its_family_computes(client: Client, folder: Path, name: str) -> None:
    load_model(client, folder / name, engine="cpu", model_id=name, dtype="f32", pooling="cls", max_tokens=130)
    reply = client.embed_many(name, TEXTS)
    data = (folder / name / "tokenizer.json").read_bytes()
    vocab = json.loads((folder / name / "config.json").read_text())["vocab_size"]
    encoded = ModelTokenizer.from_json(data, max_tokens=130, vocab_size=vocab).encode(TEXTS)
    rows = [np.array(text.ids, dtype=np.int32) for text in encoded]
    with loaded_model(reference_plugin, folder / name, max_tokens=130) as model:
        wanted = reference_plugin.synapse_embed(model, batch_of(rows, "cls"), ignore_progress)
    assert len(rows[1]) > 60
    assert np.abs(reply.vectors - wanted).max() <= 2e-6


def test_the_limit_of_an_xlm_roberta_is_its_table_less_what_no_token_takes(client: Client, folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens 131 passes the model's 130 positions"):
        load_model(client, folder / "xlm-roberta", engine="cpu", model_id="long", max_tokens=131)
