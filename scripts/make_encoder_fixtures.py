"""Record what Hugging Face transformers computes for tiny XLM-RoBERTa and ModernBERT encoders.

Needs torch and transformers, which neither the project nor its tests use; see make_bert_fixtures.py for the
environment. Writes ``tests/fixtures/tiny_FAMILY_reference.npz``: token ids and the float32 and float64 vectors of the
seeded tiny encoders, pooled by mean and by the first row, and ``tiny_cross_encoder_reference.npz``: pairs and their
float32 and float64 logits. Every sequence runs alone and without padding.
"""

from __future__ import annotations

import functools
import unittest.mock
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.modernbert import modeling_modernbert

from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
#: Sequences of each tiny encoder and their greatest length.
SEQUENCES, LONGEST = 24, 700


def main() -> None:
    """Write the files."""
    _write("tiny_xlm_roberta_reference.npz", TINY_XLM_ROBERTAS, _xlm_roberta)
    _write("tiny_modernbert_reference.npz", TINY_MODERNBERTS, _modernbert)
    arrays: dict[str, np.ndarray] = {}
    for name, tiny in CROSS_ENCODERS.items():
        arrays |= {f"{name}/{key}": value for key, value in _scored(tiny).items()}
    np.savez_compressed(FIXTURES / "tiny_cross_encoder_reference.npz", **arrays)


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


def _scored(tiny: Any) -> dict[str, np.ndarray]:
    """Pairs of one model and their logits; a BERT is told which text a token belongs to."""
    config = tiny.config()
    config = transformers.AutoConfig.for_model(**config)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    model = _with_weights(model, tiny)
    rows = _pairs(config)
    kinds = [np.arange(len(row)) > row.index(SEPARATOR) for row in rows]
    extra = [{"token_type_ids": torch.tensor([kind.astype(int).tolist()])} for kind in kinds]
    extra = extra if config.model_type == "bert" else [{}] * len(rows)
    found = {
        "ids": np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in rows]),
        "lengths": np.array([len(ids) for ids in rows], dtype=np.int32),
    }
    for name, typed in (("f32", _single), ("f64", _double)):
        typed(model)
        logits = [_logit(model, row, more) for row, more in zip(rows, extra, strict=True)]
        found[f"logits_{name}"] = torch.cat(logits)[:, 0].numpy()
    return found


@torch.no_grad()
def _logit(model: torch.nn.Module, ids: Sequence[int], more: Mapping[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([ids]), **more).logits
    return logits


def _pairs(config: Any) -> list[list[int]]:
    """Rows of two texts, each ended by the separator, which stands nowhere else; no padding ids."""
    longest = min(config.max_position_embeddings - 2 * (config.pad_token_id or 0) - 1, LONGEST)
    generator = np.random.default_rng(config.vocab_size)
    rows = []
    for length in np.unique(np.linspace(4, longest, SEQUENCES).round().astype(int)):
        row = generator.integers(SEPARATOR + 2, config.vocab_size, length)
        row[0], row[-1], row[generator.integers(1, length - 1)] = 2, SEPARATOR, SEPARATOR
        rows.append(row.tolist())
    return rows


def _with_weights(model: torch.nn.Module, tiny: Any) -> torch.nn.Module:
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tiny.tensors().items()}, strict=True)
    return model.eval()


def _single(model: torch.nn.Module) -> None:
    """Compute in float32, as transformers does by itself."""
    model.float()


def _double(model: torch.nn.Module) -> None:
    """Compute in float64, also the rotations, which transformers keeps in float32 whatever the model's type."""
    model.double()
    for module in model.modules():
        if isinstance(module, modeling_modernbert.ModernBertRotaryEmbedding):
            module.forward = functools.partial(_angles, module)
        if isinstance(module, modeling_modernbert.ModernBertAttention):
            module.forward = functools.partial(_rotating_in_double, module.forward)


def _angles(module: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> tuple[torch.Tensor, ...]:
    size = module.config.hidden_size // module.config.num_attention_heads
    theta = module.config.rope_parameters[layer_type]["rope_theta"]
    rates = float(theta) ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = (position_ids[..., None].double() * rates).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def _rotating_in_double(forward: Any, *arguments: Any, **named: Any) -> Any:
    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(part * cos + modeling_modernbert.rotate_half(part) * sin for part in (q, k))

    with unittest.mock.patch.object(modeling_modernbert, "apply_rotary_pos_emb", rotate):
        return forward(*arguments, **named)


def _recorded(tiny: Any, model: torch.nn.Module) -> dict[str, np.ndarray]:
    sequences = _sequences(tiny)
    found: dict[str, np.ndarray] = {
        "ids": np.concatenate([np.asarray(ids, dtype=np.uint16) for ids in sequences]),
        "lengths": np.array([len(ids) for ids in sequences], dtype=np.int32),
    }
    for name, typed, dtype in (("f32", _single, np.float32), ("f64", _double, np.float64)):
        typed(model)
        hidden = [_hidden(model, ids) for ids in sequences]
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
