"""A checkpoint in several files through the whole house: served, pinned file by file, and there after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.testing.models.sharded_checkpoint import INDEX_FILE, write_sharded
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer, write_model
from synapse_host.testing.refusal import refusal
from synapse_host.testing.running_host import RunningHost, load_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
TEXT = "the tide came in"
ARTIFACT = "file expected_sha256 actual_sha256 expected_size actual_size recovery_op"
SHARDED = {"engine": "reference", "files": {"model": INDEX_FILE}, "certify": False}


def sharded(directory: Path) -> list[Path]:
    files = write_sharded(directory, TINY)
    (directory / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(TINY.vocab)))
    return files


def test_several_files_are_one_model_across_restarts(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    files = sharded(tmp_path / "parts")
    write_model(tmp_path / "whole", TINY)
    with RunningHost(certified(tmp_path / "home")) as running, running.client() as client:
        load_model(client, tmp_path / "whole", engine="reference", model_id="whole", certify=False)
        load_model(client, tmp_path / "parts", model_id="parts", **(SHARDED | {"certify": True}))
        before = client.embed_query("parts", TEXT)
        np.testing.assert_array_equal(before.vectors, client.embed_query("whole", TEXT).vectors)
        assert before.fingerprint != client.embed_query("whole", TEXT).fingerprint
    with RunningHost(tmp_path / "home") as running, running.client() as client:
        after = client.embed_query("parts", TEXT)
        np.testing.assert_array_equal(after.vectors, before.vectors)
        assert after.fingerprint == before.fingerprint
        client.model_unload("parts")
        kept = files[1].read_bytes()
        files[1].write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        with pytest.raises(ArtifactInvalid) as caught:
            client.embed_query("parts", TEXT)
        answer = {"result": {"module_generation": 2, "error": caught.value.to_wire()}}
        refusal("artifact_invalid", "result", files[1].name, details=ARTIFACT).check(answer)
        assert caught.value.details["file"] == files[1].name  # type: ignore[index]
        # Other numbers in one file are another model.
        load_model(client, tmp_path / "parts", model_id="other", **SHARDED)
        rows = {row["model_id"]: row["fingerprints"] for row in client.models_list()["models"]}
        assert rows["other"] != rows["parts"]


def test_the_index_is_found_where_there_is_no_single_file(tmp_path: Path) -> None:
    sharded(tmp_path / "parts")
    with RunningHost(tmp_path / "home") as running, running.client() as client:
        load_model(client, tmp_path / "parts", model_id="named", **SHARDED)
        load_model(client, tmp_path / "parts", model_id="found", engine="reference", certify=False)
        rows = {row["model_id"]: row["fingerprints"] for row in client.models_list()["models"]}
        assert rows["found"] == rows["named"]


def no_file(directory: Path, files: list[Path]) -> None:
    files[2].unlink()


def cut_short(directory: Path, files: list[Path]) -> None:
    files[2].write_bytes(files[2].read_bytes()[:-4])


def exchanged(directory: Path, files: list[Path]) -> None:
    files[0].write_bytes(files[2].read_bytes())


def no_index(directory: Path, files: list[Path]) -> None:
    (directory / INDEX_FILE).write_text("{}")


def climbing(directory: Path, files: list[Path]) -> None:
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "../whole.safetensors"}}))


def linked_out(directory: Path, files: list[Path]) -> None:
    outside = directory.parent / "outside.safetensors"
    files[2].rename(outside)
    files[2].symlink_to(outside)


FAULTS = {
    "a file is missing": (no_file, ArtifactInvalid, r"model-00003-of-00003\.safetensors'? does not exist"),
    "a file is cut short": (cut_short, ArtifactInvalid, r"model-00003-of-00003\.safetensors is no whole safetensors"),
    "a file is another": (exchanged, ArtifactInvalid, r"model-00001-of-00003\.safetensors has no tensor"),
    "the index is none": (no_index, ArtifactInvalid, "no weight_map"),
    "the index climbs out": (climbing, ArtifactInvalid, r"no plain \.safetensors name"),
    "a file leads outside": (linked_out, InvalidRequest, "outside"),
}


def test_files_that_make_no_checkpoint_are_refused_by_name(tmp_path: Path) -> None:
    with RunningHost(tmp_path / "home") as running, running.client() as client:
        for number, (spoil, error, problem) in enumerate(FAULTS.values()):
            directory = tmp_path / f"case-{number}"
            spoil(directory, sharded(directory))
            with pytest.raises(error, match=problem):
                load_model(client, directory, model_id="spoiled", **SHARDED)
        assert client.models_list()["models"] == []
