"""What the host makes of a package set: which engine, which files, which identity, and what a worker is told of it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synapse_host.certification.probe_setting import on_reference
from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.hookspecs import BackendDescription
from synapse_host.models.load_request import LoadRequest
from synapse_host.models.model_package import resolve_files
from synapse_host.models.model_preparation import prepare_model
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.models.stored_models import model_of, row_of
from synapse_host.operations.load_manifest import ModelLoadParams, load_plan
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer

ENGINE = BackendDescription(
    backend="ane-coreml", engine="ane-coreml-worker", engine_version="0.1.0", build_flags={}, tasks=("embed", "rerank"),
    model_formats=("mlmodelc",), families=("bert", "core-ml"), dtypes=("f16",), device_class="ane", platforms=(),
    extra="ane", owned=True, abort_capable=True, kernel_revision="k", manifest_digest="m",
)  # fmt: skip
TINY = TinyBert(3, hidden=8, layers=1, heads=2, intermediate=8, vocab=90, positions=200)


def package(length: int) -> bytes:
    taken = [{"name": name, "shape": f"[1, {length}]"} for name in ("input_ids", "attention_mask")]
    described = [{"inputSchema": taken, "outputSchema": [{"name": "output", "shape": "[1, 8]"}]}]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("m.mlmodelc/metadata.json", json.dumps(described))
    return data.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for length in (128, 256, 512):
        (tmp_path / f"{length}.zip").write_bytes(package(length))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(TINY.vocab)), encoding="utf-8")
    return tmp_path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def request_of(folder: Path, *extra: Any, engine: str = "ane", model: Any = "128.zip", **changes: Any) -> LoadRequest:
    files = {"model": model, "extra": list(extra)}
    params = {"source": "file", "path": str(folder), "files": files, "engine": engine, "model_id": "set", **changes}
    return load_plan(ModelLoadParams.model_validate(params)).request


def prepared(request: LoadRequest) -> RegisteredModel:
    return prepare_model(request, resolve_files(request, ENGINE.model_formats), ENGINE, created_ms=0)


@pytest.mark.parametrize("asked", ["ane", "coreml", "neural_engine", "ane-coreml", "ane-coreml-worker"])
def test_a_zipped_package_chooses_the_engine_of_package_sets(asked: str, folder: Path) -> None:
    chosen = request_of(folder, engine=asked).engine
    assert chosen == (asked if asked.startswith("ane-") else "ane-coreml")
    assert request_of(folder, engine="ane", model="model.safetensors").engine == "ane"
    assert request_of(folder, engine="coreml", model="model.safetensors").engine == "ane"


def test_a_set_is_all_its_packages_in_their_order(folder: Path) -> None:
    model = prepared(request_of(folder, "256.zip", {"url": "512.zip", "sha256": digest(folder / "512.zip")}))
    assert (model.format, model.family, model.max_tokens, model.has_config) == ("mlmodelc", "core-ml", 512, False)
    assert (model.batch.rows, model.batch.token_budget) == (8, 4096)
    told = model.runtime_config(threads=0)
    names = ("128.zip", "256.zip", "512.zip")
    assert json.loads(told["artifact_paths"]) == [str(folder / name) for name in names]
    assert json.loads(told["artifact_digests"]) == [digest(folder / name) for name in names]
    assert not {"config_path", "shards"} & set(told)
    assert model_of(row_of(model)) == model
    roles = [
        ["model", digest(folder / "128.zip")],
        *(["extra:0", digest(folder / "256.zip")], ["extra:1", digest(folder / "512.zip")]),
    ]
    composite = hashlib.sha256(json.dumps(roles, separators=(",", ":")).encode()).hexdigest()
    assert json.loads(model.numeric_profile_json)["model_digest"] == composite
    other = prepared(request_of(folder, "512.zip", "256.zip"))
    assert other.fingerprint != model.fingerprint
    assert prepared(request_of(folder, "256.zip", "512.zip")).fingerprint == model.fingerprint


def test_rows_are_bounded_by_the_longest_package_and_by_the_model(folder: Path) -> None:
    assert prepared(request_of(folder)).max_tokens == 128
    assert prepared(request_of(folder, "256.zip", max_tokens=200)).max_tokens == 200
    with pytest.raises(InvalidRequest, match="257 passes the model's 256 positions"):
        prepared(request_of(folder, "256.zip", max_tokens=257))
    (folder / "config.json").write_text(json.dumps(TINY.config()), encoding="utf-8")
    model = prepared(request_of(folder, "256.zip"))
    assert (model.family, model.max_tokens, model.vocab_size, model.has_config) == ("bert", 200, 90, True)


@pytest.mark.parametrize("formats", [("safetensors-package",), ("gguf",)])
def test_an_engine_that_reads_no_packages_says_so_and_which_one_does(formats: tuple[str, ...], folder: Path) -> None:
    request = replace(request_of(folder), engine="cpu")
    with pytest.raises(
        InvalidRequest, match=r"'128\.zip' is a zip archive.*'cpu' reads none; choose 'ane-coreml'"
    ) as no:
        resolve_files(request, formats)
    assert no.value.details == {"parameter": "engine", "file": "128.zip"}
    resolve_files(request, ENGINE.model_formats)


def test_a_set_that_is_not_whole_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ArtifactInvalid) as missing:
        prepared(request_of(folder, "absent.zip"))
    assert missing.value.details["file"] == "absent.zip"
    with pytest.raises(ArtifactInvalid, match="not the expected 000") as other:
        prepared(request_of(folder, {"url": "256.zip", "sha256": "0" * 64}))
    assert other.value.details["file"] == "256.zip"
    (folder / "512.zip").write_bytes(b"no archive")
    with pytest.raises(ArtifactInvalid, match=r"512\.zip is no package of a set") as torn:
        prepared(request_of(folder, "512.zip"))
    assert torn.value.details["file"] == "512.zip"
    with pytest.raises(InvalidRequest, match=r"climbs out|outside"):
        prepared(request_of(folder, "../256.zip"))
    with pytest.raises(InvalidRequest, match="named twice"):
        request_of(folder, "128.zip")
    with pytest.raises(InvalidRequest, match=r"files\.extra holds 1 file"):
        request_of(folder, "256.zip", model="model.safetensors", engine="cpu")


def test_a_package_that_is_none_is_told_with_one_remedy(folder: Path) -> None:
    (folder / "256.zip").write_bytes(b"no archive")
    with zipfile.ZipFile(folder / "512.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("m.mlmodelc/metadata.json", "[]")
    general = "name zipped .mlmodelc files in files.model and files.extra"
    for name, remedy in (("256.zip", general), ("512.zip", "store or deflate it")):
        with pytest.raises(ArtifactInvalid) as refused:
            prepared(request_of(folder, name))
        assert refused.value.message.split("; ")[1:] == [remedy]


def test_the_checkpoint_a_probe_compares_with_is_no_part_of_the_identity(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(TINY.config()), encoding="utf-8")
    (folder / "made-of.safetensors").write_bytes(b"weights")
    bare = prepared(request_of(folder, "256.zip"))
    with pytest.raises(InvalidRequest, match=r"safetensors file in files\.extra"):
        on_reference(bare)
    model = prepared(request_of(folder, "256.zip", "made-of.safetensors"))
    assert model.fingerprint == bare.fingerprint
    assert len(json.loads(model.runtime_config(threads=0)["artifact_paths"])) == 2
    reference = on_reference(model)
    assert (reference.backend, reference.format, reference.family) == ("reference", "safetensors-package", "bert")
    assert reference.model_path == str(folder / "made-of.safetensors")
    assert "artifact_paths" not in reference.runtime_config(threads=0)
    (folder / "second.safetensors").write_bytes(b"weights")
    with pytest.raises(InvalidRequest, match="2 checkpoints"):
        prepared(request_of(folder, "made-of.safetensors", "second.safetensors"))
    with pytest.raises(InvalidRequest, match=r"safetensors file in files\.extra"):
        on_reference(replace(model, config_path=model.model_path))
