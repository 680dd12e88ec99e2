"""Text from an engine of this project's own waits for a certification that no probe gives yet: it fails closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.errors import InvalidRequest, NotCertified
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.tiny_qwen3 import TinyQwen3, write_qwen3

pytestmark = pytest.mark.slow


def test_an_owned_lane_loads_and_does_not_generate(tmp_path: Path) -> None:
    write_qwen3(tmp_path / "tiny", TinyQwen3(5, 32, 1, 4, 2, 8, 48, 259, 300, tied=True))
    with RunningHost(tmp_path / "home") as host, host.client() as client:
        load_model(client, tmp_path / "tiny", engine="reference", task="generate", model_id="tiny", certify=False)
        (row,) = client.models_list()["models"]
        assert (row["task"], row["certified"]) == ("generate", False)
        with pytest.raises(NotCertified, match="cannot certify"):
            client.generate("tiny", "a", max_tokens=2)
        with pytest.raises(InvalidRequest, match="no probe"):
            client.probe_start(["tiny"])
