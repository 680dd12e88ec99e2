"""Names and shapes of a checkpoint from its headers alone, in one file or several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from synapse_host.hookspecs import LoadSpec
from synapse_host.model_files.safetensors_header import SafetensorsFault
from synapse_host.owned_engine.checkpoint_shapes import checkpoint_shapes
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.models.sharded_checkpoint import INDEX_FILE, write_sharded
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS
from synapse_host.testing.models.tiny_models import write_model

#: Its names have a publisher's prefix.
MODEL = CROSS_ENCODERS[min(CROSS_ENCODERS)]


def spec_of(file: Path, shards: list[Path] | None = None) -> LoadSpec:
    opened = {shard.name: os.open(shard, os.O_RDONLY) for shard in shards or ()}
    descriptor = os.open(file, os.O_RDONLY)
    return LoadSpec(str(file), descriptor, "", "safetensors-package", "bert", {}, "f32", 64, {}, opened)


def shapes_of(spec: LoadSpec) -> dict[str, Any]:
    try:
        found = checkpoint_shapes(spec)
        return {name: (found.entry(name).shape, found.entry(name).dtype) for name in found}
    finally:
        for descriptor in (spec.artifact_fd, *spec.shards.values()):
            os.close(descriptor)


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    write_model(tmp_path, MODEL)
    file = tmp_path / "model.safetensors"
    descriptor = os.open(file, os.O_RDONLY)
    weights = CheckpointWeights.open(descriptor, file.stat().st_size)
    os.close(descriptor)
    return {name: (weights.entry(name).shape, weights.entry(name).dtype) for name in weights}


def test_shapes_are_those_of_the_tensors_and_no_number_is_read(
    tmp_path: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = tmp_path / "model.safetensors", []
    pread = os.pread

    def counted(descriptor: int, size: int, position: int) -> bytes:
        read.append(pread(descriptor, size, position))
        return read[-1]

    monkeypatch.setattr(os, "pread", counted)
    assert shapes_of(spec_of(file)) == wanted
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert sum(map(len, read)) == 8 + header < file.stat().st_size


def test_several_files_have_the_shapes_of_one(tmp_path: Path, wanted: dict[str, Any]) -> None:
    parts = write_sharded(tmp_path / "parts", MODEL, ("f32", "f32", "f32"))
    assert shapes_of(spec_of(tmp_path / "parts" / INDEX_FILE, parts)) == wanted
    fewer = shapes_of(spec_of(tmp_path / "parts" / INDEX_FILE, parts[:2]))
    assert 0 < len(fewer) < len(wanted)


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(SafetensorsFault, match="the header claims"):
        shapes_of(spec_of(tmp_path / "model.safetensors"))
