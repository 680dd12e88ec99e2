"""A block of the real MiniLM through a host on MLX's CPU device: its own tokenizer, vocabulary and widths.

One block of six: the whole model takes a probe minutes on the reference BLAS that device multiplies with.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import write_safetensors
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac serves on the device this is to refuse"),
]
TEXTS = ["the tide comes in", "boats float on the tide", "taxes are due in may"]
#: Short rows alone: every row of a probe is padded to 64 tokens.
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("minilm"), minilm_directory()
    descriptor = os.open(source / "model.safetensors", os.O_RDONLY)
    weights = CheckpointWeights.open(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    kept = [
        name for name in weights if not any(f"layer.{i}." in name for i in range(1, 6)) and "position_ids" not in name
    ]
    write_safetensors(folder / "model.safetensors", {name: weights.entry(name).to_float32() for name in kept}, "f32")
    weights.close()
    config = json.loads((source / "config.json").read_text("utf-8")) | {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(source / "tokenizer.json", folder)
    return folder


def test_a_block_of_minilm_is_certified_and_serves_as_the_reference_does(block: Path, tmp_path: Path) -> None:
    with RunningHost(tmp_path / "home", {"SYNAPSE_METAL_ALLOW_CPU": "1"}) as host, host.client() as client:
        for engine in ("metal", "reference"):
            load_model(client, block, engine=engine, model_id=f"on-{engine}", max_tokens=MAX_TOKENS)
        found, wanted = (client.embed_many(f"on-{engine}", TEXTS).vectors for engine in ("metal", "reference"))
    assert found.shape == (3, 384)
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= 0.999999
    assert found[0] @ found[1] > found[0] @ found[2]
