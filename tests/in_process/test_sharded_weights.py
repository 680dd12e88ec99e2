"""Checkpoints in several files: the same bits as in one, every file verified, every fault named with its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.family_table import MODEL_FORMAT
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.sharded_checkpoint import INDEX_FILE, shards_pair, write_sharded
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS
from synapse_host.worker.loading import ResidentModels
from synapse_host.worker_protocol.messages import Load

TINY = TINY_MODERNBERTS["short_window"]
BATCH = batch_of(seeded_rows([1, 7, 30], 101))


class ReferencePlugin:
    """The reference's hooks, called as the worker calls them."""

    operations = frozenset({"synapse_embed"})

    def hook(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(reference_plugin, name)
        return found


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def load(directory: Path, shards: Mapping[str, str]) -> Any:
    """Vectors of the batch by a model loaded as a worker loads it; the model is unloaded again."""
    residents = ResidentModels(ReferencePlugin(), reference_plugin.synapse_describe())
    config = (directory / "config.json").read_bytes()
    pairs = {
        "config_path": str(directory / "config.json"),
        "config_digest": hashlib.sha256(config).hexdigest(),
        "family": json.loads(config)["model_type"],
        "dtype": "f32",
        "max_tokens": "64",
        **shards,
    }
    index = directory / INDEX_FILE
    request = Load("1", str(index), hashlib.sha256(index.read_bytes()).hexdigest(), MODEL_FORMAT, pairs)
    open_before = open_files()
    reference, resident = residents.load(request, ignore_progress)
    # The index stays open with the model; the weight files do not.
    assert open_files() == open_before + 1
    vectors = reference_plugin.synapse_embed(resident.model, BATCH, ignore_progress)
    residents.unload(reference)
    return vectors


@pytest.mark.parametrize("model", [TINY, TINY_XLM_ROBERTAS["pad_four"]], ids=["modernbert", "xlm_roberta"])
@pytest.mark.parametrize("files", [1, 2, 5])
def test_files_give_the_bits_of_one_file(model: Any, files: int, tmp_path: Path) -> None:
    parts = write_sharded(tmp_path / "parts", model, ("f32",) * files)
    write_model(tmp_path / "whole", model)
    with loaded_model(reference_plugin, tmp_path / "whole", max_tokens=64) as whole:
        wanted = reference_plugin.synapse_embed(whole, BATCH, ignore_progress)
    assert load(tmp_path / "parts", shards_pair(parts)).tobytes() == wanted.tobytes()


def test_files_may_hold_different_types(tmp_path: Path) -> None:
    exact = load(tmp_path, shards_pair(write_sharded(tmp_path, TINY)))
    mixed = load(tmp_path, shards_pair(write_sharded(tmp_path, TINY, ("f32", "bf16", "f16"))))
    assert 0.9 < np.sum(exact * mixed, axis=1).min() < 1.0 - 1e-7


def missing(files: list[Path]) -> list[Path]:
    return files[:-1]


def exchanged(files: list[Path]) -> list[Path]:
    first, second = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(second)
    files[1].write_bytes(first)
    return files


def cut_short(files: list[Path]) -> list[Path]:
    files[1].write_bytes(files[1].read_bytes()[:-1])
    return files


def no_file(files: list[Path]) -> list[Path]:
    files[1].write_bytes(b"")
    return files


FAULTS = {
    "a file is not given": (missing, r"00003-of-00003\.safetensors is named by the index and was not given"),
    "files are exchanged": (exchanged, r"00001-of-00003\.safetensors: .*which the index promises"),
    "a file is cut short": (cut_short, r"model-00002-of-00003\.safetensors: "),
    "a file is empty": (no_file, r"model-00002-of-00003\.safetensors: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_are_not_those_of_the_index_are_refused(fault: str, tmp_path: Path) -> None:
    spoil, problem = FAULTS[fault]
    with pytest.raises(PluginError, match=problem) as caught:
        load(tmp_path, shards_pair(spoil(write_sharded(tmp_path, TINY))))
    assert caught.value.code == "artifact_invalid"


def test_a_file_changed_since_it_was_hashed_is_refused(tmp_path: Path) -> None:
    files = write_sharded(tmp_path, TINY)
    pair = shards_pair(files)
    files[2].write_bytes(files[2].read_bytes()[:-1] + b"\1")
    with pytest.raises(PluginError, match=r"00003\.safetensors' has sha256") as caught:
        load(tmp_path, pair)
    assert caught.value.code == "artifact_invalid"


def test_two_files_with_one_tensor_under_two_prefixes_are_refused(tmp_path: Path) -> None:
    class Doubled:
        def config(self) -> dict[str, Any]:
            return TINY.config()

        def tensors(self) -> dict[str, Any]:
            tensors = TINY.tensors()
            return tensors | {"model.final_norm.weight": tensors["final_norm.weight"]}

    with pytest.raises(PluginError, match=r"are both called 'final_norm\.weight'"):
        load(tmp_path, shards_pair(write_sharded(tmp_path, Doubled())))


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": ["p"]}', '{"a": ["p", 1]}', "[" * 50_000])
def test_a_pair_that_lists_no_files_is_refused(text: str, tmp_path: Path) -> None:
    write_sharded(tmp_path, TINY)
    with pytest.raises(PluginError, match="no JSON object of file name") as caught:
        load(tmp_path, {"shards": text})
    assert caught.value.code == "config_invalid"


def test_an_index_without_its_files_is_no_checkpoint(tmp_path: Path) -> None:
    write_sharded(tmp_path, TINY)
    with pytest.raises(PluginError) as caught:
        load(tmp_path, {})
    assert caught.value.code == "artifact_invalid"
