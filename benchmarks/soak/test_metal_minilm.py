"""Real weights on the Metal backend's CPU device, through a host: minutes, because MLX's products are slow there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.running_host import RunningHost, load_model


@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac serves on its GPU")
def test_minilm_is_loaded_certified_and_served(tmp_path: Path) -> None:
    with RunningHost(tmp_path, {"SYNAPSE_METAL_ALLOW_CPU": "1"}) as host, host.client() as client:
        load_model(client, minilm_directory(), engine="owned-metal", model_id="minilm", max_tokens=64)
        vectors = client.embed_many("minilm", ["boats float", "ships swim", "taxes are due in may"]).vectors
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
