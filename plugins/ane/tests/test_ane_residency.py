"""Shapes admitted and given up: what is compiled, what is refused, and what is told of it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_ane import plugin
from synapse_ane.description import revision_of
from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.shape_table import MOST_SHAPES, ShapeTable

from synapse_host.hookspecs import Phase, PluginError
from synapse_host.owned_engine import kernel_revision
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")

INTERPRETED = {"allow_interpreter": "true"}
EXPLICIT = {"shape_admission": "explicit"}
TINY = TinyBert(9, hidden=24, layers=2, heads=2, intermediate=32, vocab=99, positions=2100)
LADDER = (128, 256, 512, 1024, 2048)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", TINY)
    return tmp_path / "model"


def test_what_hello_said_of_the_sources_is_not_computed_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    token_digest = kernel_revision.token_digest

    def counted(source: str) -> str:
        read.append(source)
        return token_digest(source)

    monkeypatch.setattr(kernel_revision, "token_digest", counted)
    revision_of.cache_clear()
    said = plugin.synapse_describe(INTERPRETED)
    with loaded_model(
        plugin, tiny, dtype="f16", max_tokens=512, runtime_config=EXPLICIT, settings=INTERPRETED
    ) as model:
        assert model.programs.identity.kernel_revision == said.kernel_revision
    assert len(read) == len(plugin.kernel_sources())


def test_a_lane_longer_than_the_ladder_is_a_fault_of_the_request(tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    write_model(tmp_path / "long", replace(TINY, positions=9000))
    with (
        pytest.raises(PluginError) as refused,
        loaded_model(plugin, tmp_path / "long", dtype="f16", max_tokens=8193, settings=INTERPRETED),
    ):
        pass
    assert refused.value.code == "config_invalid"
    assert str(refused.value) == "max_tokens 8193 passes the longest shape, 8192; lower max_tokens"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions the runtime was asked to load, in order."""
    loads: list[str] = []
    load = InterpretedRuntime.load

    def counted(self: InterpretedRuntime, compiled: Path, function: str | None) -> Any:
        loads.append(str(function))
        return load(self, compiled, function)

    monkeypatch.setattr(InterpretedRuntime, "load", counted)
    return loads


def test_a_host_that_admits_shapes_has_nothing_compiled_at_load(tiny: Path, compiled: list[str]) -> None:
    row = seeded_rows([100], TINY.vocab)
    with loaded_model(
        plugin, tiny, dtype="f16", max_tokens=512, runtime_config=EXPLICIT, settings=INTERPRETED
    ) as model:
        assert (compiled, plugin.synapse_placement(model)) == ([], None)
        with pytest.raises(PluginError, match="128 is not compiled here; compiled: none") as refused:
            plugin.synapse_embed(model, batch_of(row), ignore_progress)
        assert refused.value.code == "shape_not_admitted"
        told: list[tuple[int, Phase]] = []
        inventory = plugin.synapse_admit_shape(model, 128, lambda done, phase, ids=(): told.append((done, phase)))
        assert inventory["executables"] == [{"id": "tokens_128/embed-mean-l2", "layers": [0, 1]}]
        assert inventory["cpu_stages"][:2] == ["masks", "token_embedding"]
        assert (compiled, told) == (["tokens_128"], [(1, "control")])
        share = plugin.synapse_placement(model)
        assert share is not None
        assert 0.9 <= share < 1.0
        first = plugin.synapse_embed(model, batch_of(row), ignore_progress)
        assert plugin.synapse_admit_shape(model, 128, ignore_progress) == inventory
        assert plugin.synapse_evict_shape(model, 128, ignore_progress) is True
        assert plugin.synapse_evict_shape(model, 128, ignore_progress) is False
        assert plugin.synapse_placement(model) == share
        with pytest.raises(PluginError, match="compiled: none"):
            plugin.synapse_embed(model, batch_of(row), ignore_progress)
        plugin.synapse_admit_shape(model, 128, ignore_progress)
        assert compiled == ["tokens_128"] * 2
        assert plugin.synapse_embed(model, batch_of(row), ignore_progress).tobytes() == first.tobytes()
        with pytest.raises(PluginError, match="129 is no shape of this lane; it has 128, 256, 512") as wrong:
            plugin.synapse_admit_shape(model, 129, ignore_progress)
        assert wrong.value.code == "invalid_request"


def test_packages_of_a_killed_worker_go_with_the_next_load(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    root = tmp_path / f"synapse-ane-{os.getuid()}"
    root.mkdir(mode=0o700)
    (left := root / f"{pid}-packages").mkdir()
    with loaded_model(plugin, tiny, dtype="f16", max_tokens=128, runtime_config=EXPLICIT, settings=INTERPRETED):
        assert not left.exists()
        assert len(list(root.iterdir())) == 1
    assert list(root.iterdir()) == []


def test_a_missing_tensor_shows_at_load_also_where_nothing_is_compiled(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text("utf-8"))
    (tiny / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}), encoding="utf-8")
    with (
        pytest.raises(PluginError, match=r"layer\.2") as refused,
        loaded_model(plugin, tiny, dtype="f16", max_tokens=128, runtime_config=EXPLICIT, settings=INTERPRETED),
    ):
        pass
    assert refused.value.code == "artifact_invalid"
    with (
        pytest.raises(PluginError, match="'always'"),
        loaded_model(plugin, tiny, dtype="f16", runtime_config={"shape_admission": "always"}, settings=INTERPRETED),
    ):
        pass


def test_a_shape_core_ml_refuses_is_not_resident(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(self: InterpretedRuntime, compiled: Path, function: str | None) -> Any:
        raise RuntimeError("the engine has no room")

    with loaded_model(
        plugin, tiny, dtype="f16", max_tokens=128, runtime_config=EXPLICIT, settings=INTERPRETED
    ) as model:
        with monkeypatch.context() as patched:
            patched.setattr(InterpretedRuntime, "load", refusing)
            with pytest.raises(PluginError, match="128 could not be compiled") as refused:
                plugin.synapse_admit_shape(model, 128, ignore_progress)
        assert refused.value.code == "inference_failed"
        assert (model.programs.shapes.resident, plugin.synapse_placement(model)) == ((), None)
        assert plugin.synapse_admit_shape(model, 128, ignore_progress)["executables"]


def test_a_package_compiled_before_is_opened_and_an_older_form_goes(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    config = EXPLICIT | {"package_cache_root": str(packages)}

    def forms() -> list[int]:
        return sorted(int(path.suffixes[0][1:]) for path in packages.glob("*.mlmodelc"))

    for shapes, left in (([128, 256], [1, 2]), ([256], [2])):
        with loaded_model(
            plugin, tiny, dtype="f16", max_tokens=256, runtime_config=config, settings=INTERPRETED
        ) as model:
            for shape in shapes:
                plugin.synapse_admit_shape(model, shape, ignore_progress)
        assert forms() == left

    def refusing(*_: Any) -> None:
        raise AssertionError("everything is there")

    monkeypatch.setattr(InterpretedRuntime, "compile", refusing)
    with loaded_model(plugin, tiny, dtype="f16", max_tokens=256, runtime_config=config, settings=INTERPRETED) as model:
        vectors = [
            plugin.synapse_admit_shape(model, shape, ignore_progress)
            and plugin.synapse_embed(model, batch_of(seeded_rows([shape], TINY.vocab)), ignore_progress)
            for shape in (128, 256)
        ]
    assert all(np.isfinite(each).all() for each in vectors)


def test_without_a_host_that_admits_the_longest_unused_shape_goes() -> None:
    table = ShapeTable(LADDER, explicit=False)
    assert [table.use(length) for length in LADDER[:MOST_SHAPES]] == [None] * MOST_SHAPES
    assert table.use(128) is None
    assert table.use(2048) == 256
    assert table.drop(256) is True
    assert table.resident == (128, 512, 1024, 2048)


def test_what_is_admitted_stays_until_it_is_evicted() -> None:
    table = ShapeTable(LADDER, explicit=True)
    for length in LADDER[:MOST_SHAPES]:
        table.admit(length)
        table.admit(length)
    with pytest.raises(PluginError, match="2048 would be one past 4; evict one of 128, 256, 512, 1024") as full:
        table.admit(2048)
    assert full.value.code == "ane_residency_limit"
    assert table.use(128) is None
    assert table.drop(512) is True
    assert table.drop(512) is False
    table.admit(2048)
    assert table.resident == (128, 256, 1024, 2048)
