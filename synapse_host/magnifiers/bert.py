"""BERT and XLM-RoBERTa, which is BERT with another head and positions that begin after that of padding."""

from __future__ import annotations

from typing import Any

from synapse_host.magnifiers.magnifier import LENGTHS, SEPARATOR, VOCAB, Array, Magnifier, Numbers, pairs_of

SEED = 20_260_131
HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 48, 2, 3, 80, 192
_PAD = 1


def bert() -> Magnifier:
    """The BERT encoder and cross-encoder."""
    numbers = Numbers(SEED)
    tensors = _encoder(numbers, POSITIONS, types=2, carry=25.0)
    rows = numbers.rows(LENGTHS)
    head = Numbers(SEED + 1)
    # The pooler's inputs are small enough that tanh bends and does not saturate.
    tensors |= {
        "pooler.dense.weight": head.normal(HIDDEN, HIDDEN, scale=0.15),
        "pooler.dense.bias": head.normal(HIDDEN, scale=0.1),
        "classifier.weight": head.normal(1, HIDDEN, scale=0.3),
        "classifier.bias": head.normal(1, scale=0.1),
    }
    config = {**_CONFIG, "model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": POSITIONS}
    return Magnifier("bert", config, tensors, rows, pairs_of(rows), separator=SEPARATOR)


def xlm_roberta() -> Magnifier:
    """The XLM-RoBERTa encoder and cross-encoder; one token type, a table with rows before the first position."""
    numbers = Numbers(SEED + 5)
    table = POSITIONS + _PAD + 1
    tensors = _encoder(numbers, table, types=1, carry=40.0)
    rows = numbers.rows(LENGTHS)
    tensors |= {
        "classifier.dense.weight": numbers.normal(HIDDEN, HIDDEN, scale=0.15),
        "classifier.dense.bias": numbers.normal(HIDDEN, scale=0.1),
        "classifier.out_proj.weight": numbers.normal(1, HIDDEN, scale=0.3),
        "classifier.out_proj.bias": numbers.normal(1, scale=0.1),
    }
    config = _CONFIG | {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "max_position_embeddings": table,
        "pad_token_id": _PAD,
        "type_vocab_size": 1,
    }
    return Magnifier("xlm-roberta", config, tensors, rows, pairs_of(rows))


_CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "num_labels": 1,
}


def _encoder(numbers: Numbers, positions: int, *, types: int, carry: float) -> dict[str, Array]:
    normal = numbers.normal
    # Variance 1e-6: an epsilon of 1e-5 instead of 1e-12 shrinks the normalised rows to a third beside their bias.
    tensors = {
        "embeddings.word_embeddings.weight": normal(VOCAB, HIDDEN, scale=1e-3),
        "embeddings.position_embeddings.weight": normal(positions, HIDDEN, scale=1e-3),
        "embeddings.token_type_embeddings.weight": normal(types, HIDDEN, scale=1e-3),
        "embeddings.LayerNorm.weight": normal(HIDDEN, scale=0.1, mean=1.0),
        "embeddings.LayerNorm.bias": normal(HIDDEN, scale=0.7),
    }
    for i in range(LAYERS):
        tensors |= _layer(numbers, f"encoder.layer.{i}", carry)
    return tensors


def _layer(numbers: Numbers, layer: str, carry: float) -> dict[str, Array]:
    normal = numbers.normal
    tensors: dict[str, Array] = {}
    for name in ("query", "key"):
        tensors[f"{layer}.attention.self.{name}.weight"] = normal(HIDDEN, HIDDEN, scale=0.35)
        tensors[f"{layer}.attention.self.{name}.bias"] = normal(HIDDEN, scale=0.2)
    tensors[f"{layer}.attention.self.value.weight"] = normal(HIDDEN, HIDDEN, scale=0.25)
    tensors[f"{layer}.attention.self.value.bias"] = normal(HIDDEN, scale=0.1)
    tensors[f"{layer}.attention.output.dense.weight"] = normal(HIDDEN, HIDDEN, scale=0.25)
    tensors[f"{layer}.attention.output.dense.bias"] = normal(HIDDEN, scale=0.1)
    # Inputs near -3 with small spread: gelu is about -0.004 there and its two forms differ by a tenth.
    tensors[f"{layer}.intermediate.dense.weight"] = normal(WIDE, HIDDEN, scale=0.06)
    tensors[f"{layer}.intermediate.dense.bias"] = normal(WIDE, scale=0.2, mean=-3.0)
    tensors[f"{layer}.output.dense.weight"] = normal(HIDDEN, WIDE, scale=carry)
    tensors[f"{layer}.output.dense.bias"] = normal(HIDDEN, scale=0.1)
    for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
        tensors[f"{layer}.{norm}.weight"] = normal(HIDDEN, scale=0.1, mean=1.0)
        tensors[f"{layer}.{norm}.bias"] = normal(HIDDEN, scale=0.1)
    return tensors
