"""Tiny models are complete, loadable and the same bits for the same seed everywhere."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from synapse_host.hookspecs import DType
from synapse_host.ops.dtypes import rounded
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.models.tiny_models import TINY_BERTS, TinyBert, tiny_tokenizer, write_model, write_tiny_bert

TINY = TINY_BERTS["two_layers"]


def open_weights(path: Path) -> CheckpointWeights:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return CheckpointWeights.open(descriptor, path.stat().st_size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_weights_come_back_as_they_were_made(dtype: DType, tmp_path: Path) -> None:
    write_model(tmp_path, TINY, dtype)
    weights = open_weights(tmp_path / "model.safetensors")
    for name, tensor in TINY.tensors().items():
        assert weights.tensor(name).tobytes() == rounded(tensor, dtype).tobytes()


def test_the_function_of_sizes_writes_the_same_model(tmp_path: Path) -> None:
    sizes = {"hidden": 50, "layers": 2, "heads": 5, "intermediate": 77, "vocab": 333, "positions": 131}
    config = write_tiny_bert(tmp_path / "a", seed=12, **sizes)
    assert write_model(tmp_path / "b", TINY) == config == json.loads((tmp_path / "a" / "config.json").read_text())
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_seed_gives_the_same_bits_for_ever() -> None:
    digest = hashlib.sha256(b"".join(tensor.tobytes() for tensor in TINY.tensors().values()))
    assert digest.hexdigest() == "dd87e090a3f6a2f5d235fefecc82f8105c6618858bf1b0e70ec7aceb3f40f4b2"


def test_seeds_and_tensors_differ() -> None:
    tensors = TINY.tensors()
    other = TinyBert(99, 50, 2, 5, 77, 333, 131).tensors()
    assert all(not np.array_equal(tensor, other[name]) for name, tensor in tensors.items())
    assert len({tensor.tobytes() for tensor in tensors.values()}) == len(tensors)


@pytest.mark.parametrize("vocab", [6, 40, 101, 1440, 3000])
def test_the_tokenizer_has_exactly_the_vocabulary_of_the_model(vocab: int) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tiny_tokenizer(vocab)))
    assert tokenizer.get_vocab_size() == vocab
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab))


def test_the_tokenizer_pads_and_truncates_like_a_published_file_and_reads_words() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tiny_tokenizer(333)))
    assert len(tokenizer.encode("a").ids) == 128
    tokenizer.no_padding()
    assert tokenizer.encode("Tea, 42 ☃").tokens == ["[CLS]", "te", "##a", ",", "4", "##2", "[UNK]", "[SEP]"]
    assert tokenizer.decode(tokenizer.encode("Tea, 42").ids) == "tea, 42"


def test_sizes_that_make_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocabulary of 5"):
        tiny_tokenizer(5)
    with pytest.raises(ValueError, match="50 cannot be shared by 4 heads"):
        write_model(tmp_path, TinyBert(1, 50, 1, 4, 8, 40, 16))
