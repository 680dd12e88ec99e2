"""What only a Mac can answer: compilation, numbers, placement and residency; ``-m hardware -s`` prints the figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_ane import coreml_plugin, evidence, plugin
from synapse_ane.core_ml_runtime import CoreMLTools
from synapse_ane.package_maker import make_set_of

from synapse_host.hookspecs import LoadSpec, PluginError
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.testing.conformance.suite import ConformanceSuite
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_encoders import recorded_encoder, recorded_pairs
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_cross_encoders import SEPARATOR
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import write_qwen3

FOUND = evidence.judge(evidence.read_machine())
pytestmark = [
    pytest.mark.hardware,
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]
if FOUND.status != "ok":
    pytest.skip(f"needs a Neural Engine: {FOUND.message}", allow_module_level=True)

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
NONE: dict[str, str] = {}
EXPLICIT = {"shape_admission": "explicit"}
#: Share of operations a lane is certified from (probe.placement_share).
LEAST_SHARE = 0.9
#: The layers and widths of gte-modernbert-base, its vocabulary left out.
GTE = TinyModernBert(1, 768, 22, 12, 1152, 400, 8192, span=128)


def held(name: str, found: Any, wanted: Any) -> None:
    cosine = np.sum(found.astype(np.float64) * wanted, axis=1).min()
    print(f"\n{name}: cosine {cosine:.8f}, a component off by {np.abs(found - wanted).max():.2e}")
    assert cosine >= END_TO_END["f16"].min_cosine


class TestAneOnAMac(ConformanceSuite):
    backend = "ane"


@pytest.mark.parametrize("name", ["xlm_roberta/three_layers", "modernbert/as_published"])
def test_encoders_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=recorded.longest, settings=NONE) as model:
        found = plugin.synapse_embed(model, batch_of(recorded.rows), ignore_progress)
        alone = np.concatenate([plugin.synapse_embed(model, batch_of([row]), ignore_progress) for row in recorded.rows])
        print(f"\n{name}: placement {plugin.synapse_placement(model)}")
    held(name, found, recorded.f64["mean"])
    assert found.tobytes() == alone.tobytes()


def test_qwen3_agrees_with_transformers(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=recorded.longest, settings=NONE) as model:
        found = plugin.synapse_embed(model, batch_of(recorded.rows, "last"), ignore_progress)
    held("qwen3", found, recorded.vectors["f64"])


@pytest.mark.parametrize("name", ["bert/two_layers", "modernbert/mean"])
def test_scores_of_pairs_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    places = [place for place, row in enumerate(recorded.rows) if len(row) <= 128]
    config = {"operation": "rerank", "pair_separator": str(SEPARATOR)}
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=128, runtime_config=config, settings=NONE) as model:
        found = plugin.synapse_rerank(model, [recorded.rows[place] for place in places], ignore_progress)
    error = np.abs(found - recorded.f64[places]).max()
    print(f"\n{name}: a score off by {error:.4f}")
    assert error <= 0.03


def test_shapes_come_and_go_are_placed_and_are_fast_enough_to_tell(tmp_path: Path) -> None:
    """Figures for every shape at the size of gte: compilation, placement, milliseconds of a row."""
    write_model(tmp_path, GTE)
    config = EXPLICIT | {"package_cache_root": str(tmp_path / "packages")}
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=8192, runtime_config=config, settings=NONE) as model:
        for shape in model.buckets:
            began = time.perf_counter()
            inventory = plugin.synapse_admit_shape(model, shape, ignore_progress)
            compiled = time.perf_counter() - began
            row = batch_of(seeded_rows([shape], GTE.vocab))
            plugin.synapse_embed(model, row, ignore_progress)
            began = time.perf_counter()
            vector = plugin.synapse_embed(model, row, ignore_progress)
            took = time.perf_counter() - began
            share = plugin.synapse_placement(model)
            print(
                f"\ngte at {shape}: {compiled:.1f} s to compile {len(inventory['executables'])} programs, "
                f"least share so far {share}, {took * 1000:.1f} ms a row, elsewhere {inventory['cpu_stages']}"
            )
            assert np.isfinite(vector).all()
            assert share is not None
            assert share >= LEAST_SHARE
            assert plugin.synapse_evict_shape(model, shape, ignore_progress) is True
            with pytest.raises(PluginError, match="compiled: none"):
                plugin.synapse_embed(model, row, ignore_progress)


def test_the_placement_of_every_function_of_a_package_is_told_to_a_later_worker(tmp_path: Path) -> None:
    """Whether a compute plan tells of functions that are not the default of their package is written nowhere."""
    write_model(tmp_path, TinyBert(11, hidden=64, layers=4, heads=4, intermediate=128, vocab=400, positions=512))
    config = EXPLICIT | {"package_cache_root": str(tmp_path / "packages")}
    for shapes in ((128, 256), (128,), (256,)):
        with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=256, runtime_config=config, settings=NONE) as model:
            for shape in shapes:
                plugin.synapse_admit_shape(model, shape, ignore_progress)
            share = plugin.synapse_placement(model)
            print(f"\nfunctions {shapes} of one package: least share {share}")
            assert share is not None


def test_a_package_set_is_made_loaded_and_agrees_with_the_direct_engine(tmp_path: Path) -> None:
    import json

    tiny = TinyBert(11, hidden=64, layers=4, heads=4, intermediate=128, vocab=400, positions=256)
    write_model(tmp_path, tiny)
    made = make_set_of(tmp_path, tmp_path / "set", (64, 128), CoreMLTools())
    lists = {
        "artifact_paths": json.dumps([str(each.path) for each in made]),
        "artifact_digests": json.dumps([each.sha256 for each in made]),
    }
    spec = LoadSpec(str(made[0].path), -1, made[0].sha256, "mlmodelc", "core-ml", {}, "f16", 128, lists)
    rows = batch_of(seeded_rows([1, 40, 64, 65, 128], tiny.vocab))
    packages = coreml_plugin.synapse_load(spec, ignore_progress, NONE)
    found = coreml_plugin.synapse_embed(packages, rows, ignore_progress)
    print(f"\npackages: placement {coreml_plugin.synapse_placement(packages)}")
    assert coreml_plugin.synapse_unload(packages) is True
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=128, settings=NONE) as model:
        wanted = plugin.synapse_embed(model, rows, ignore_progress)
    held("packages beside programs", found, wanted)
