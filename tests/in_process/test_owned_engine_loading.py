"""What LOAD refuses, with which code, and that the message names what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import LoadSpec, PluginError
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_host.owned_engine.family_table import MODEL_FORMAT
from synapse_host.owned_engine.loading import available_threads, load_engine
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.engine_runs import ignore_progress
from synapse_host.testing.models.tiny_models import TinyBert, write_model

TINY = TinyBert(seed=3, hidden=12, layers=2, heads=3, intermediate=20, vocab=61, positions=48)


def spec_of(directory: Path, **changes: Any) -> LoadSpec:
    path = directory / "model.safetensors"
    runtime: Mapping[str, str] = changes.pop("runtime_config", {})
    spec = LoadSpec(str(path), os.open(path, os.O_RDONLY), "", MODEL_FORMAT, "bert", TINY.config(), "f32", 48, runtime)
    return replace(spec, **changes)


def load(spec: LoadSpec) -> OwnedEngine:
    try:
        return reference_plugin.synapse_load(spec, ignore_progress)
    finally:
        os.close(spec.artifact_fd)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path, TINY)
    return tmp_path


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"format": "gguf"}, "model_unsupported", "'gguf'"),
    ({"family": "mamba"}, "model_unsupported", "'mamba' is not one of bert"),
    ({"dtype": "bf16"}, "config_invalid", "'bf16' is not one of f32"),
    ({"max_tokens": 49}, "config_invalid", "max_tokens 49 passes the 48 positions"),
    ({"config": {k: v for k, v in TINY.config().items() if k != "vocab_size"}}, "config_invalid", "no 'vocab_size'"),
    ({"config": TINY.config() | {"hidden_act": "mish"}}, "config_invalid", "'mish'"),
    (
        {"config": TINY.config() | {"vocab_size": 62}},
        "artifact_invalid",
        "(61, 12) where config.json asks for (62, 12)",
    ),
    ({"config": TINY.config() | {"num_hidden_layers": 3}}, "artifact_invalid", "'encoder.layer.2."),
    ({"runtime_config": {"operation": "generate"}}, "operation_mismatch", "'generate'"),
    ({"runtime_config": {"operation": "rerank"}}, "config_invalid", "names 2 labels and a reranker has 1"),
    (
        {"runtime_config": {"operation": "rerank"}, "config": TINY.config() | {"num_labels": 1}},
        "artifact_invalid",
        "'pooler.dense.weight'",
    ),
    ({"config": TINY.config() | {"num_labels": "one"}}, "config_invalid", "num_labels 'one'"),
    ({"runtime_config": {"pair_separator": "[SEP]"}}, "config_invalid", "pair_separator '[SEP]'"),
    ({"runtime_config": {"threads": "two"}}, "config_invalid", "'two'"),
    ({"runtime_config": {"threads": "-1"}}, "config_invalid", "'-1'"),
    ({"runtime_config": {"pooling": "max"}}, "config_invalid", "'max'"),
    ({"runtime_config": {"normalize": "yes"}}, "config_invalid", "'yes'"),
]


@pytest.mark.parametrize(("changes", "code", "said"), REFUSALS, ids=[said for _, _, said in REFUSALS])
def test_a_model_that_cannot_serve_is_refused(directory: Path, changes: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(PluginError) as refused:
        load(spec_of(directory, **changes))
    assert refused.value.code == code
    assert said in str(refused.value)


def test_a_file_with_a_lying_header_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(PluginError, match=r"model\.safetensors") as refused:
        load(spec_of(directory))
    assert refused.value.code == "artifact_invalid"


@pytest.mark.parametrize(("failure", "code"), [(MemoryError(), "oom"), (RuntimeError("no such kernel"), "load_failed")])
def test_failures_of_a_device_get_their_code(directory: Path, failure: Exception, code: str) -> None:
    def broken(*_: Any) -> Any:
        raise failure

    with pytest.raises(PluginError) as refused:
        load_engine(spec_of(directory), ("f32",), broken, ignore_progress)
    assert refused.value.code == code


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("0", available_threads()), (None, available_threads())])
def test_threads_are_a_number_or_all_cores(directory: Path, text: str | None, threads: int) -> None:
    seen: list[int] = []

    def backend(weights: Any, settings: Any) -> Any:
        seen.append(settings.threads)
        return reference_plugin._backend(weights, settings)

    runtime = {} if text is None else {"threads": text}
    load_engine(spec_of(directory, runtime_config=runtime), ("f32",), backend, ignore_progress)
    assert seen == [threads]


def test_load_reports_progress_in_the_setup_phase(directory: Path) -> None:
    seen: list[tuple[int, str]] = []
    reference_plugin.synapse_load(spec_of(directory), lambda done, phase: seen.append((done, phase)))
    assert seen == [(1, "setup")]


# --- weights ---------------------------------------------------------------------------------------------------------


def weights_of(path: Path) -> CheckpointWeights:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return CheckpointWeights.open(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def written(path: Path, named: dict[str, tuple[str, Any]]) -> Path:
    """A safetensors file of already stored arrays."""
    header, data = {}, b""
    for name, (dtype, array) in named.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("prefix", ["", "model.", "bert.", "roberta."])
def test_one_publisher_prefix_is_stripped_once(tmp_path: Path, prefix: str) -> None:
    names = [f"{prefix}x.weight", f"{prefix}bert.y"]
    path = written(tmp_path / "m", {name: ("F32", np.ones(2, np.float32)) for name in names})
    expected = ["x.weight", "bert.y"] if prefix else ["x.weight", "y"]
    assert list(weights_of(path)) == expected


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m", {name: ("F32", np.ones(2, np.float32)) for name in ("bert.x", "x")})
    with pytest.raises(ValueError, match=r"'x' and 'bert\.x' are both called 'x'"):
        weights_of(path)


@pytest.mark.parametrize(
    ("dtype", "stored", "expected"),
    [
        ("F32", np.array([1.5, -2.0], np.float32), [1.5, -2.0]),
        ("F16", np.array([1.5, 65504.0], np.float16), [1.5, 65504.0]),
        ("F64", np.array([1 / 3, 2.0]), [np.float32(1 / 3), 2.0]),
        ("BF16", np.array([0x3FC0, 0xC000], np.uint16), [1.5, -2.0]),
    ],
)
def test_every_floating_type_reads_as_float32(tmp_path: Path, dtype: str, stored: Any, expected: list[float]) -> None:
    # One odd byte in front: tensors need not be aligned in the file.
    path = written(tmp_path / "m", {"pad": ("U8", np.zeros(1, np.uint8)), "x": (dtype, stored)})
    weights = weights_of(path)
    assert weights.entry("x").dtype == dtype
    assert weights.tensor("x").dtype == np.float32
    assert weights.tensor("x").tolist() == expected


def test_a_tensor_of_integers_is_refused_by_name(tmp_path: Path) -> None:
    weights = weights_of(written(tmp_path / "m", {"n": ("I64", np.arange(3))}))
    with pytest.raises(ValueError, match="'n' is stored as I64"):
        weights.tensor("n")
    with pytest.raises(KeyError, match="absent"):
        weights.tensor("absent")


def test_the_mapping_outlives_its_descriptor_and_the_path(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    weights = weights_of(written(tmp_path / "m", {"x": ("F32", values)}))
    (tmp_path / "m").unlink()
    view = weights.tensor("x")
    weights.close()
    assert view.tolist() == values.tolist()
    assert list(weights) == []
