"""Record what Hugging Face transformers computes for tiny XLM-RoBERTa and ModernBERT encoders.

Needs torch and transformers, which neither the project nor its tests use; see make_bert_fixtures.py for the
environment. Writes ``tests/fixtures/tiny_FAMILY_reference.npz``: token ids and the float32 and float64 vectors of the
seeded tiny encoders, pooled by mean and by the first row. Every sequence runs alone and without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from synapse_host.testing.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.tiny_modernbert import TINY_MODERNBERTS

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
#: Sequences of each tiny encoder and their greatest length.
SEQUENCES, LONGEST = 24, 700


def main() -> None:
    """Write the files."""
    _write("tiny_xlm_roberta_reference.npz", TINY_XLM_ROBERTAS, _xlm_roberta)
    _write("tiny_modernbert_reference.npz", TINY_MODERNBERTS, _modernbert)


def _write(file: str, models: Mapping[str, Any], load: Any) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, tiny in models.items():
        arrays |= {f"{name}/{key}": value for key, value in _recorded(tiny, load(tiny)).items()}
    np.savez_compressed(FIXTURES / file, **arrays)


def _xlm_roberta(tiny: Any) -> torch.nn.Module:
    config = transformers.XLMRobertaConfig(**tiny.config())
    config._attn_implementation = "eager"
    return _with_weights(transformers.XLMRobertaModel(config, add_pooling_layer=False), tiny)


def _modernbert(tiny: Any) -> torch.nn.Module:
    config = transformers.ModernBertConfig(**tiny.config())
    config._attn_implementation = "eager"
    return _with_weights(transformers.ModernBertModel(config), tiny)


def _with_weights(model: torch.nn.Module, tiny: Any) -> torch.nn.Module:
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tiny.tensors().items()}, strict=True)
    return model.eval()


def _recorded(tiny: Any, model: torch.nn.Module) -> dict[str, np.ndarray]:
    sequences = _sequences(tiny)
    found: dict[str, np.ndarray] = {
        "ids": np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in sequences]),
        "lengths": np.array([len(ids) for ids in sequences], dtype=np.int32),
    }
    for name, typed, dtype in (("f32", model.float(), np.float32), ("f64", model.double(), np.float64)):
        hidden = [_hidden(typed, ids) for ids in sequences]
        found[f"mean_{name}"] = np.stack([_unit(rows.mean(axis=0)) for rows in hidden]).astype(dtype)
        found[f"cls_{name}"] = np.stack([_unit(rows[0]) for rows in hidden]).astype(dtype)
    return found


def _sequences(tiny: Any) -> list[list[int]]:
    """Random ids of 24 lengths from 1 to the longest, those at which something changes among them.

    The padding id is left out: inside a text transformers gives it another position.
    """
    longest = min(tiny.positions, LONGEST)
    edges = {length for length in getattr(tiny, "edges", ()) if length <= longest}
    spread = np.linspace(1, longest, SEQUENCES - len(edges)).round().astype(int)
    lengths = sorted(edges | set(spread.tolist()))
    for length in range(2, longest):
        if len(lengths) >= SEQUENCES:
            break
        lengths = sorted({*lengths, length})
    generator = np.random.default_rng(tiny.seed)
    pad = tiny.config()["pad_token_id"]
    drawn = [generator.integers(0, tiny.vocab - 1, length) for length in lengths]
    return [np.where(ids >= pad, ids + 1, ids).tolist() for ids in drawn]


@torch.no_grad()
def _hidden(model: torch.nn.Module, ids: Sequence[int]) -> np.ndarray:
    hidden: np.ndarray = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy().astype(np.float64)
    return hidden


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


if __name__ == "__main__":
    main()
