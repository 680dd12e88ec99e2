"""Driving an embedding backend through its hooks, without a host or a worker: load, embed, compare bits.

Also a program, so that vectors of one process can be compared with those of another::

    python -m synapse_host.testing.engine_runs PLUGIN_MODULE MODEL_DIRECTORY DTYPE SEED [SETTING=VALUE ...]

loads the model, embeds seeded rows of ``EDGE_LENGTHS`` in an order that SEED decides and prints one JSON object of
length to the SHA-256 of its vector.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import BackendSettings, DType, EmbedBatch, LoadSpec, Phase, Pooling
from synapse_host.model_files.architectures import FAMILY_OF_MODEL_TYPE
from synapse_host.owned_engine.family_table import MODEL_FORMAT

TokenIds: TypeAlias = npt.NDArray[np.int32]
Vectors: TypeAlias = npt.NDArray[np.float32]

#: Lengths around every bucket edge that matters, the shortest and the longest included.
EDGE_LENGTHS = (
    1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 319, 320,
    321, 384, 400, 448, 511, 512,
)  # fmt: skip


def ignore_progress(completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None:
    """A progress hook for callers that do not watch."""


@contextmanager
def loaded_model(
    plugin: Any,
    directory: Path,
    *,
    dtype: DType = "f32",
    max_tokens: int = 512,
    runtime_config: Mapping[str, str] | None = None,
    settings: BackendSettings = MappingProxyType({}),
) -> Iterator[Any]:
    """The checkpoint of ``directory`` loaded by ``plugin`` under ``settings``, unloaded at the end.

    The descriptor is closed right after the load: a backend must hold its own mapping.
    """
    path = directory / "model.safetensors"
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        asked = "settings" in inspect.signature(plugin.synapse_load).parameters
        model = plugin.synapse_load(
            LoadSpec(
                artifact_path=str(path),
                artifact_fd=descriptor,
                artifact_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
                format=MODEL_FORMAT,
                family=FAMILY_OF_MODEL_TYPE[config["model_type"]],
                config=config,
                dtype=dtype,
                max_tokens=max_tokens,
                runtime_config=runtime_config or {},
            ),
            ignore_progress,
            **({"settings": settings} if asked else {}),
        )
    finally:
        os.close(descriptor)
    try:
        yield model
    finally:
        plugin.synapse_unload(model)


def batch_of(rows: Sequence[TokenIds], pooling: Pooling = "mean", normalize: bool = True) -> EmbedBatch:
    """The hook's batch of ``rows``; items are named by their place."""
    ids = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    return EmbedBatch(ids, [len(row) for row in rows], [str(place) for place in range(len(rows))], pooling, normalize)


def seeded_rows(lengths: Sequence[int], vocab: int, seed: int = 0) -> list[TokenIds]:
    """Rows of random token ids; a row depends on its length and the seed only, not on what stands beside it."""
    return [np.random.default_rng((seed, length)).integers(0, vocab, length).astype(np.int32) for length in lengths]


def vector_digest(vector: Vectors) -> str:
    """SHA-256 of the vector's bytes."""
    return hashlib.sha256(np.ascontiguousarray(vector, dtype="<f4").tobytes()).hexdigest()


def edge_digests(plugin: Any, model: Any, vocab: int, order_seed: int) -> dict[int, str]:
    """Length to digest of every edge length, embedded in one batch in an order ``order_seed`` decides."""
    lengths = [int(length) for length in np.random.default_rng(order_seed).permutation(EDGE_LENGTHS)]
    vectors = plugin.synapse_embed(model, batch_of(seeded_rows(lengths, vocab)), ignore_progress)
    return {length: vector_digest(vector) for length, vector in zip(lengths, vectors, strict=True)}


def main(arguments: Sequence[str]) -> None:
    """Print the edge digests of a plugin's model as JSON."""
    module, directory, dtype, seed, *pairs = arguments
    settings = dict(pair.split("=", 1) for pair in pairs)
    plugin = importlib.import_module(module)
    vocab = int(json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    with loaded_model(plugin, Path(directory), dtype=cast("DType", dtype), settings=settings) as model:
        sys.stdout.write(json.dumps(edge_digests(plugin, model, vocab, int(seed))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
