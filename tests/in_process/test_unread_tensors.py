"""What of a checkpoint a model does not read is told once, by the names in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import loaded_model
from synapse_host.testing.models.tiny_models import TinyBert, write_model, write_safetensors
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker

BERT = TinyBert(seed=5, hidden=32, layers=3, heads=4, intermediate=64, vocab=120, positions=64)


def told(directory: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    capsys.readouterr()
    with loaded_model(reference_plugin, directory, max_tokens=32, **options):
        return capsys.readouterr().err


@pytest.mark.parametrize("model", [BERT, TinyModernBert(45, 20, 2, 2, 26, 97, 64, span=16)], ids=["bert", "modernbert"])
def test_a_checkpoint_of_which_all_is_read_is_not_spoken_of(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, model)
    assert "not read" not in told(tmp_path, capsys)


def test_layers_that_config_leaves_out_are_named_with_what_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, BERT)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    (line,) = told(tmp_path, capsys).splitlines()
    left = sorted(name for name in BERT.tensors() if "encoder.layer.2." in name)
    assert line == (
        f"note: {len(left)} tensors of {tmp_path / 'model.safetensors'} are not read to embed with a bert model of "
        f"this config.json: {', '.join(left[:5])} and {len(left) - 5} more; that is as it should be for the head of "
        "another task, and for whole layers it is not: check num_hidden_layers"
    )


def test_what_one_task_leaves_another_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, TinyBertReranker(41, 48, 2, 4, 96, 120, 66))
    assert "classifier.weight" in told(tmp_path, capsys)
    assert "not read" not in told(tmp_path, capsys, runtime_config={"operation": "rerank", "pair_separator": "3"})


def test_a_decoder_reads_its_output_embeddings_and_an_encoder_of_it_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_qwen3(tmp_path, TinyQwen3(9, 24, 2, 4, 2, 12, 40, 90, 128, tied=False))
    assert "1 tensors of" in (line := told(tmp_path, capsys))
    assert "lm_head.weight" in line
    assert "not read" not in told(tmp_path, capsys, runtime_config={"operation": "generate"})


def test_heads_of_training_that_every_encoder_carries_are_not_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, BERT)
    heads = dict.fromkeys(("pooler.dense.weight", "cls.predictions.bias"), np.ones(3, np.float32))
    write_safetensors(tmp_path / "model.safetensors", {**BERT.tensors(), **heads})
    assert "not read" not in told(tmp_path, capsys)


def test_tensors_of_whole_numbers_are_read_by_nobody_and_not_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, BERT)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    header["embeddings.position_ids"] = {
        "dtype": "I64",
        "shape": [2],
        "data_offsets": [len(numbers), len(numbers) + 16],
    }
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + numbers + bytes(16))
    assert "not read" not in told(tmp_path, capsys)
    write_safetensors(tmp_path / "model.safetensors", {**BERT.tensors(), "embeddings.extra": np.zeros(3, np.float32)})
    assert "embeddings.extra" in told(tmp_path, capsys)
