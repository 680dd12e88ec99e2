"""Package sets through the hooks of ``ane-coreml``: made of a checkpoint, loaded, embedded, reranked, refused."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_ane import coreml_plugin, package_maker
from synapse_ane.evidence import read_machine
from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.package_maker import MadePackage, make_set_of

from synapse_host.hookspecs import LoadSpec, PluginError
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.sharded_checkpoint import write_sharded
from synapse_host.testing.models.tiny_cross_encoders import SEPARATOR
from synapse_host.testing.models.tiny_encoders import TinyXlmRoberta
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3
from synapse_host.testing.models.tiny_rerankers import TINY_RERANKERS
from synapse_host.testing.models.tiny_static import TinyStatic

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")

INTERPRETED = {"allow_interpreter": "true"}
TINY = TinyBert(11, hidden=24, layers=1, heads=2, intermediate=32, vocab=99, positions=256)
OTHER = TinyBert(12, hidden=24, layers=1, heads=2, intermediate=32, vocab=99, positions=256)
PAIRS = TINY_RERANKERS["two_layers"]
LENGTHS = (64, 32, 128)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for name, model in {"tiny": TINY, "other": OTHER}.items():
        (folder / name).mkdir()
        write_model(folder / name, model)
    return folder


@pytest.fixture(scope="module")
def tiny_set(home: Path) -> list[MadePackage]:
    return make_set_of(home / "tiny", home / "tiny-set", LENGTHS, InterpretedRuntime())


@pytest.fixture(scope="module")
def other_set(home: Path) -> list[MadePackage]:
    return make_set_of(home / "other", home / "other-set", (32, 256), InterpretedRuntime())


def spec_of(made: Sequence[MadePackage], max_tokens: int, **config: str) -> LoadSpec:
    lists = {
        "artifact_paths": json.dumps([str(each.path) for each in made]),
        "artifact_digests": json.dumps([each.sha256 for each in made]),
    }
    first = made[0]
    return LoadSpec(
        str(first.path),
        -1,
        first.sha256,
        "mlmodelc",
        config.pop("family", "core-ml"),
        {},
        "f16",
        max_tokens,
        lists | config,
    )


@contextmanager
def loaded(made: Sequence[MadePackage], max_tokens: int = 32, **config: str) -> Iterator[Any]:
    model = coreml_plugin.synapse_load(spec_of(made, max_tokens, **config), ignore_progress, INTERPRETED)
    try:
        yield model
    finally:
        assert coreml_plugin.synapse_unload(model) is True


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is unpacked lies below a folder of the test, and is gone at its end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.glob("synapse-ane-*/*")) == []


def test_vectors_are_those_of_the_checkpoint_and_of_the_row_alone(home: Path, tiny_set: list[MadePackage]) -> None:
    rows = seeded_rows([1, 5, 31, 32, 33, 64, 65, 100, 128], TINY.vocab)
    with loaded(tiny_set, 128) as model:
        assert (model.dims, model.buckets) == (24, [32, 64, 128])
        assert coreml_plugin.synapse_placement(model) > 0.95, "of one layer, a look-up and a mask are not the engine's"
        steps: list[tuple[int, str]] = []
        found = coreml_plugin.synapse_embed(
            model, batch_of(rows), lambda done, phase, ids=(): steps.append((done, phase))
        )
        alone = np.stack(
            [coreml_plugin.synapse_embed(model, batch_of([row]), ignore_progress)[0] for row in rows[::-1]]
        )
        raw = coreml_plugin.synapse_embed(model, batch_of(rows[:2], normalize=False), ignore_progress)
    with loaded_model(reference_plugin, home / "tiny", max_tokens=128) as reference:
        wanted = reference_plugin.synapse_embed(reference, batch_of(rows), ignore_progress)
    assert found.tobytes() == alone[::-1].tobytes()
    assert steps == [(place + 1, "inference") for place in range(len(rows))]
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= END_TO_END["f16"].min_cosine
    lengths = np.linalg.norm(raw.astype(np.float64), axis=1)
    assert np.abs(lengths - 1).max() > 0.1, "scaled to length one by who asks for it alone"
    assert np.allclose(raw / lengths[:, None], found[:2], atol=1e-6)


def saying(made: MadePackage, output: str, folder: Path) -> MadePackage:
    """``made`` with another shape of its output in what it says of itself."""
    path = folder / made.path.name
    with zipfile.ZipFile(made.path) as given, zipfile.ZipFile(path, "w") as other:
        for entry in given.infolist():
            content = given.read(entry)
            if entry.filename.endswith("metadata.json"):
                (described,) = json.loads(content)
                described["outputSchema"][0]["shape"] = output
                content = json.dumps([described]).encode()
            other.writestr(entry, content)
    return MadePackage(path, hashlib.sha256(path.read_bytes()).hexdigest(), made.length)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_package_that_gives_rows_is_pooled_here(
    pooling: Any, tiny_set: list[MadePackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from synapse_ane import interpreted_runtime

    made = saying(tiny_set[1], "[1, 32, 24]" if pooling == "mean" else "[]", tmp_path)
    hidden = np.random.default_rng(5).standard_normal((1, 32, 24)).astype(np.float32)
    monkeypatch.setattr(interpreted_runtime.InterpretedProgram, "predict", lambda self, inputs: {"output": hidden})
    with loaded([made], 32, pooling=pooling) as model:
        found = coreml_plugin.synapse_embed(
            model, batch_of(seeded_rows([7], 99), pooling, normalize=False), ignore_progress
        )
    kept = hidden[0, :7]
    wanted = {"mean": kept.mean(axis=0), "cls": kept[0], "last": kept[6]}[pooling]
    assert np.allclose(found[0], wanted, atol=1e-6)


def test_a_row_is_never_cut_and_the_refusal_has_both_numbers(tiny_set: list[MadePackage]) -> None:
    with loaded(tiny_set[:2], 64) as model:
        with pytest.raises(PluginError, match=r"65 tokens does not fit packages of 1 to 64") as refused:
            coreml_plugin.synapse_embed(model, batch_of(seeded_rows([3, 65], 99)), ignore_progress)
        assert refused.value.code == "invalid_request"
        assert '"1"' in str(refused.value) or "'1'" in str(refused.value)
        with pytest.raises(PluginError, match=r"token id -1 is below 0") as negative:
            coreml_plugin.synapse_embed(model, batch_of([np.array([3, -1], np.int32)]), ignore_progress)
        assert negative.value.code == "invalid_request"
        with pytest.raises(PluginError, match="pool by themselves, as 'mean'") as other:
            coreml_plugin.synapse_embed(model, batch_of(seeded_rows([3], 99), "cls"), ignore_progress)
        assert other.value.code == "invalid_request"
        with pytest.raises(PluginError, match="operation rerank"):
            coreml_plugin.synapse_rerank(model, seeded_rows([3], 99), ignore_progress)
    with (
        pytest.raises(PluginError, match="max_tokens 65 passes the longest package, 64") as long,
        loaded(tiny_set[:2], 65),
    ):
        pass
    assert long.value.code == "config_invalid"


def test_scores_of_pairs_are_those_of_the_checkpoint(tiny_set: list[MadePackage], tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    source.mkdir()
    write_model(source, PAIRS)
    rows = seeded_rows([9, 30, 64, 100], PAIRS.vocab)
    for row in rows:
        row[4] = SEPARATOR
    config = {"operation": "rerank", "pair_separator": str(SEPARATOR), "family": "bert"}
    made = make_set_of(source, tmp_path / "set", (64, 128), InterpretedRuntime(), task="rerank", kinds=True)
    with loaded(made, 128, **config) as model:
        assert model.dims == 0
        assert coreml_plugin.synapse_placement(model) > 0.95, "two look-ups and a mask are not the engine's"
        found = coreml_plugin.synapse_rerank(model, rows, ignore_progress)
        with pytest.raises(PluginError, match="operation embed"):
            coreml_plugin.synapse_embed(model, batch_of(rows), ignore_progress)
    with loaded_model(reference_plugin, source, max_tokens=128, runtime_config=config) as reference:
        wanted = reference_plugin.synapse_rerank(reference, rows, ignore_progress)
    assert np.abs(found - wanted).max() < 0.02
    assert np.ptp(wanted) > 0.05
    with pytest.raises(PluginError, match="should give one score"), loaded(tiny_set, operation="rerank"):
        pass


def test_packages_of_two_models_are_found_by_what_they_answer(
    tiny_set: list[MadePackage], other_set: list[MadePackage]
) -> None:
    with (
        pytest.raises(PluginError, match=r"tokens-32.* and tokens-256.* disagree about one row") as refused,
        loaded([tiny_set[1], other_set[1]]),
    ):
        pass
    assert refused.value.code == "artifact_invalid"


def test_the_least_placed_package_speaks_for_the_set(
    tiny_set: list[MadePackage], monkeypatch: pytest.MonkeyPatch
) -> None:
    from synapse_ane.core_ml_runtime import Placement

    shares = iter([Placement(9, 0, 1), Placement(8, 2, 0), Placement(10, 0, 0)])
    monkeypatch.setattr(InterpretedRuntime, "placement", lambda *_: next(shares))
    with loaded(tiny_set) as model:
        assert coreml_plugin.synapse_placement(model) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"vector": np.ones((1, 24))}, r"gave \['vector'\] and not 'output'"),
        ({"output": np.ones((2, 24))}, r"gave 'output' \[2, 24\]"),
        ({"output": np.ones((1, 31, 24))}, r"gave 'output' \[1, 31, 24\]"),
        ({"output": np.ones((1, 25))}, r"\[1, 25\] and says of itself that it gives \[1, 24\]"),
        ({"output": np.full((1, 24), np.nan)}, "gives no numbers"),
        ({"output": np.zeros((1, 24))}, "gives no numbers"),
    ],
)
def test_a_program_that_gives_something_else_is_refused_at_load(
    found: dict[str, Any], said: str, tiny_set: list[MadePackage], monkeypatch: pytest.MonkeyPatch
) -> None:
    from synapse_ane import interpreted_runtime

    monkeypatch.setattr(interpreted_runtime.InterpretedProgram, "predict", lambda self, inputs: found)
    with pytest.raises(PluginError, match=said) as refused, loaded(tiny_set):
        pass
    assert refused.value.code == "artifact_invalid"


def test_what_core_ml_does_not_open_is_typed(tiny_set: list[MadePackage], monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> Any:
        raise RuntimeError("compiled for another system")

    monkeypatch.setattr(InterpretedRuntime, "load", refusing)
    with (
        pytest.raises(PluginError, match=r"tokens-32\.mlmodelc\.zip could not be made ready") as refused,
        loaded(tiny_set),
    ):
        pass
    assert refused.value.code == "load_failed"


def test_the_first_package_is_the_artifact_itself(tiny_set: list[MadePackage]) -> None:
    spec = spec_of(tiny_set, 32)
    lists = dict(spec.runtime_config)
    lists["artifact_paths"] = json.dumps([str(each.path) for each in tiny_set[::-1]])
    from dataclasses import replace

    with pytest.raises(PluginError, match="artifact_paths begins with") as refused:
        coreml_plugin.synapse_load(replace(spec, runtime_config=lists), ignore_progress, INTERPRETED)
    assert refused.value.code == "config_invalid"


def test_the_maker_prints_what_model_load_wants(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_set: list[MadePackage]
) -> None:
    out = tmp_path / "out"
    assert package_maker.main([str(home / "tiny"), str(out), "--lengths", "64,32", "--interpreted"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["model"]["url"] == "tokens-64.mlmodelc.zip"
    assert [each["url"] for each in listed["extra"]] == ["tokens-32.mlmodelc.zip"]
    assert sorted(path.name for path in out.iterdir()) == ["tokens-32.mlmodelc.zip", "tokens-64.mlmodelc.zip"]
    with pytest.raises(ValueError, match="257 positions pass the 256"):
        make_set_of(home / "tiny", tmp_path / "long", (257,), InterpretedRuntime())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lengths", "64,64", "--interpreted"), "'64,64' is no list of positive, different lengths"),
        (("--lengths", "0", "--interpreted"), "'0' is no list"),
        (("--lengths", "64,257", "--interpreted"), "257 positions pass the 256 of the model; ask for shorter ones"),
        (("--task", "rerank", "--lengths", "64", "--interpreted"), "a reranker has 1"),
        (("--lengths", "64"), "say --interpreted"),
        (("--lengths", "64", "--kinds", "--interpreted"), "say --task rerank"),
    ],
)
def test_the_maker_refuses_in_one_line_before_it_does_anything(
    options: tuple[str, ...], said: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--interpreted" not in options and read_machine().platform == "darwin":
        pytest.skip("a Mac makes the set")
    with pytest.raises(SystemExit) as ended:
        package_maker.main([str(home / "tiny"), str(tmp_path / "out"), *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_weights_in_several_files_make_the_packages_of_one(home: Path, tmp_path: Path) -> None:
    write_sharded(tmp_path / "sharded", TINY)
    one = make_set_of(home / "tiny", tmp_path / "one", (32,), InterpretedRuntime())
    several = make_set_of(tmp_path / "sharded", tmp_path / "several", (32,), InterpretedRuntime())
    rows = batch_of(seeded_rows([5, 31], TINY.vocab))
    vectors = []
    for made in (one, several):
        with loaded(made) as model:
            vectors.append(coreml_plugin.synapse_embed(model, rows, ignore_progress).tobytes())
    assert vectors[0] == vectors[1]
    next((tmp_path / "sharded").glob("*-of-*.safetensors")).unlink()
    with pytest.raises(FileNotFoundError, match="-of-"):
        make_set_of(tmp_path / "sharded", tmp_path / "torn", (32,), InterpretedRuntime())


FAMILIES: dict[str, tuple[Any, Any]] = {
    "modernbert": (TinyModernBert(3, 20, 3, 2, 26, 97, 200, span=16), "cls"),
    "qwen3": (TinyQwen3(3, 16, 2, 2, 1, 10, 24, 97, 200, tied=True), "last"),
    "static": (TinyStatic(3, 20, 97, 200), "mean"),
    "xlm-roberta": (
        TinyXlmRoberta(TinyBert(3, hidden=20, layers=1, heads=2, intermediate=24, vocab=97, positions=200)),
        "mean",
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_makes_a_set(name: str, tmp_path: Path) -> None:
    tiny, pooling = FAMILIES[name]
    write_model(tmp_path / "of", tiny)
    made = make_set_of(tmp_path / "of", tmp_path / "set", (48,), InterpretedRuntime(), pooling=pooling)
    rows = batch_of(seeded_rows([2, 24, 40], 97), pooling)
    with loaded(made, 48, pooling=pooling) as model:
        found = coreml_plugin.synapse_embed(model, rows, ignore_progress)
    with loaded_model(reference_plugin, tmp_path / "of", max_tokens=128) as reference:
        wanted = reference_plugin.synapse_embed(reference, rows, ignore_progress)
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= END_TO_END["f16"].min_cosine
