"""A tiny seeded model built to make small mistakes large.

A wrong epsilon, the tanh form of GELU or a shifted position hardly moves the vectors of a trained model, least of all
in bf16. This one is made so that each of them turns the output: embeddings so small that epsilon decides their scale
beside a large norm bias; feed-forward inputs around -3, where the two forms of GELU differ by a tenth of their value,
with outputs scaled up to carry the residual; positions that differ from row to row; attention sharp enough that one
masked or misplaced key shows.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float32]

SEED = 20_260_131
SEPARATOR = 3
VOCAB, HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 97, 48, 2, 3, 80, 192
#: Lengths of the rows, chosen around the edges of padded shapes.
LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 144, 160)


@dataclass(frozen=True, slots=True)
class MagnifyingModel:
    """Where the model was written, the rows to run through it, and the same rows as pairs of two texts."""

    model: Path
    config: Path
    rows: list[list[int]]
    pairs: list[list[int]]


def write_magnifying_model(directory: Path) -> MagnifyingModel:
    """Write model.safetensors and config.json into ``directory``; the same bytes on every machine and call.

    The model embeds, and with its classifier it reranks.
    """
    rng = np.random.Generator(np.random.PCG64(SEED))
    model, config = directory / "model.safetensors", directory / "config.json"
    model.write_bytes(_safetensors(_tensors(rng)))
    config.write_text(json.dumps(_CONFIG, sort_keys=True))
    rows = [rng.integers(0, VOCAB, size=length).tolist() for length in LENGTHS for _ in range(2)]
    return MagnifyingModel(model, config, rows, [_pair(row) for row in rows if len(row) > 2])


def _pair(row: list[int]) -> list[int]:
    """The row with one separator after its first third and one at its end."""
    pair = [token if token != SEPARATOR else SEPARATOR + 1 for token in row]
    pair[len(row) // 3] = pair[-1] = SEPARATOR
    return pair


_CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "num_labels": 1,
}


def _tensors(rng: np.random.Generator) -> dict[str, Array]:
    def normal(*shape: int, scale: float, mean: float = 0.0) -> Array:
        return (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    # Variance 1e-6: an epsilon of 1e-5 instead of 1e-12 shrinks the normalised rows to a third beside their bias.
    tensors = {
        "embeddings.word_embeddings.weight": normal(VOCAB, HIDDEN, scale=1e-3),
        "embeddings.position_embeddings.weight": normal(POSITIONS, HIDDEN, scale=1e-3),
        "embeddings.token_type_embeddings.weight": normal(2, HIDDEN, scale=1e-3),
        "embeddings.LayerNorm.weight": normal(HIDDEN, scale=0.1, mean=1.0),
        "embeddings.LayerNorm.bias": normal(HIDDEN, scale=0.7),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
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
        tensors[f"{layer}.output.dense.weight"] = normal(HIDDEN, WIDE, scale=25.0)
        tensors[f"{layer}.output.dense.bias"] = normal(HIDDEN, scale=0.1)
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors[f"{layer}.{norm}.weight"] = normal(HIDDEN, scale=0.1, mean=1.0)
            tensors[f"{layer}.{norm}.bias"] = normal(HIDDEN, scale=0.1)
    return tensors | _head()


def _head() -> dict[str, Array]:
    # Numbers of its own seed: a change here leaves the encoder and the rows as they are.
    rng = np.random.Generator(np.random.PCG64(SEED + 1))

    def normal(*shape: int, scale: float) -> Array:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    # The pooler's inputs are small enough that tanh bends and does not saturate.
    return {
        "pooler.dense.weight": normal(HIDDEN, HIDDEN, scale=0.15),
        "pooler.dense.bias": normal(HIDDEN, scale=0.1),
        "classifier.weight": normal(1, HIDDEN, scale=0.3),
        "classifier.bias": normal(1, scale=0.1),
    }


def _safetensors(tensors: dict[str, Array]) -> bytes:
    header: dict[str, object] = {}
    body = bytearray()
    for name, tensor in sorted(tensors.items()):
        data = np.ascontiguousarray(tensor, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + bytes(body)
