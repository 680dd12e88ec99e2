"""Tiny checkpoints cut into several safetensors files, written as large ones are published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from synapse_host.testing.models.tiny_models import TinyModel, write_safetensors

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

INDEX_FILE = "model.safetensors.index.json"


def write_sharded(directory: Path, model: TinyModel, dtypes: tuple[DType, ...] = ("f32", "f32", "f32")) -> list[Path]:
    """Write the weights of ``model`` as one file for each of ``dtypes`` beside their index, and config.json.

    Tensors go round the files, so that every layer is spread over all of them. Returns the files of weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = model.tensors()
    files = [f"model-{part:05}-of-{len(dtypes):05}.safetensors" for part in range(1, len(dtypes) + 1)]
    places = {name: files[place % len(files)] for place, name in enumerate(tensors)}
    for file, dtype in zip(files, dtypes, strict=True):
        write_safetensors(directory / file, {name: tensors[name] for name in tensors if places[name] == file}, dtype)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(model.config()), encoding="utf-8")
    return [directory / file for file in files]


def shards_pair(files: list[Path]) -> Mapping[str, str]:
    """The pair ``shards`` of LOAD for ``files``."""
    listed = {file.name: [str(file), hashlib.sha256(file.read_bytes()).hexdigest()] for file in files}
    return {"shards": json.dumps(listed)}
