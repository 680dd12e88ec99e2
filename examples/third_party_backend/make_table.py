"""Make a model of static embeddings out of the input table of a BERT encoder: ``make_table.py ENCODER OUT``.

Each token keeps its vector in the encoder's word table, less the mean of all of them, and rare tokens count for more:
the weight of a token grows with the logarithm of its place in the vocabulary, which lists frequent tokens first. OUT is
then a directory that ``synapse-host load`` takes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from synapse_host.owned_engine.weights import CheckpointWeights

WORDS = "embeddings.word_embeddings.weight"
MOST_TOKENS = 8192


def main(encoder: Path, out: Path) -> None:
    """Read ``encoder``, a directory with a BERT checkpoint, and write the three files of a model into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(encoder / "model.safetensors", os.O_RDONLY)
    try:
        words = CheckpointWeights.open(descriptor, os.fstat(descriptor).st_size).tensor(WORDS)
    finally:
        os.close(descriptor)
    rank = np.arange(1, len(words) + 1, dtype=np.float32)
    table = (words - words.mean(axis=0)) * np.log1p(rank)[:, None]
    (out / "model.safetensors").write_bytes(safetensors("embedding.weight", table))
    (out / "config.json").write_text(json.dumps(config(table)), encoding="utf-8")
    (out / "tokenizer.json").write_text(json.dumps(tokenizer(encoder)), encoding="utf-8")


def config(table: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The config.json of the host's family ``static``."""
    rows, width = table.shape
    sizes = {"vocab_size": rows, "hidden_size": width, "max_position_embeddings": MOST_TOKENS}
    return {"model_type": "static", "architectures": ["StaticEmbedding"], **sizes}


def tokenizer(encoder: Path) -> dict[str, Any]:
    """The encoder's tokenizer, which puts no special tokens around a text any more: a mean would count them in."""
    document: dict[str, Any] = json.loads((encoder / "tokenizer.json").read_text(encoding="utf-8"))
    return document | {"post_processor": None}


def safetensors(name: str, tensor: np.ndarray[Any, Any]) -> bytes:
    """A safetensors file with one float32 tensor."""
    data = tensor.astype("<f4").tobytes()
    entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({name: entry}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
