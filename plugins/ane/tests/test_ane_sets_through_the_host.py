"""A host with the developers' switch loads, certifies and serves a package set by the interpreter; others refuse it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.package_maker import make_set_of

from synapse_host.errors import ArtifactInvalid, BackendUnavailable, InvalidRequest
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac serves on the device this is to refuse"),
]

TINY = TinyBert(seed=5, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=128)
TEXTS = ["the tide comes in", "a", "boats float on the tide " * 3]
#: The checkpoint is what a probe compares the packages with.
FILES = {"model": "tokens-32.mlmodelc.zip", "extra": ["tokens-64.mlmodelc.zip", "model.safetensors"]}
SWITCH = {"SYNAPSE_ANE_ALLOW_INTERPRETER": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, TINY)
    made = make_set_of(folder, folder / "made", (32, 64), InterpretedRuntime())
    for each in made:
        shutil.move(each.path, folder / each.path.name)
    return folder


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    with RunningHost(tmp_path_factory.mktemp("home"), SWITCH) as running:
        yield running


def test_a_set_is_loaded_certified_and_served(host: RunningHost, models: Path) -> None:
    with host.client() as client:
        load_model(client, models, engine="ane", model_id="set", files=FILES)
        (row,) = [row for row in client.models_list()["models"] if row["model_id"] == "set"]
        assert (row["bucket_ladder"], row["max_tokens"], row["device_class"]) == ([32, 64], 64, "cpu")
        vectors = client.embed_many("set", TEXTS).vectors
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
        with pytest.raises(InvalidRequest, match="'ane-coreml-worker' does not serve generate"):
            load_model(client, models, engine="ane", model_id="text", task="generate", files=FILES, certify=False)


def test_without_the_switch_a_set_is_refused_with_the_reason(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("other")
    with RunningHost(home) as running, running.client() as client, pytest.raises(BackendUnavailable) as refused:
        load_model(client, models, engine="ane", model_id="set", files=FILES)
    (row,) = (refused.value.details or {})["backends"]
    assert (row["backend"], row["reason"]) == ("ane-coreml", "not_supported_on_platform")


def test_a_package_of_another_model_is_refused_by_name(host: RunningHost, models: Path, tmp_path: Path) -> None:
    for name in ("tokens-32.mlmodelc.zip", "tokenizer.json"):
        shutil.copy(models / name, tmp_path / name)
    (tmp_path / "other").mkdir()
    write_model(
        tmp_path / "other", TinyBert(seed=6, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=128)
    )
    (made,) = make_set_of(tmp_path / "other", tmp_path, (64,), InterpretedRuntime())
    files = {"model": "tokens-32.mlmodelc.zip", "extra": [made.path.name]}
    with host.client() as client, pytest.raises(ArtifactInvalid, match="disagree about one row"):
        load_model(client, tmp_path, engine="ane", model_id="mixed", files=files)
