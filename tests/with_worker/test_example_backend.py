"""The example under ``examples/third_party_backend``, installed as a package would be and used as the host uses it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.backends.backend_row import rows_as_json
from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import ENTRY_POINT_GROUP, list_backends
from synapse_host.backends.loaded_plugin import LoadedPlugin, load_plugin
from synapse_host.hookspecs import EmbedBatch, LoadSpec, PluginError, Pooling
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import install_distribution
from synapse_host.testing.fake_engine import load_request
from synapse_host.testing.running_worker import PATIENCE_S, running
from synapse_host.testing.running_worker import embed as worker_embed
from synapse_host.testing.suite_runs import run_suite
from synapse_host.worker_protocol.messages import Loaded

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_backend"
NAME = "example-hash"
CONFIG = {"hidden_size": 24, "vocab_size": 1000}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example installed from the metadata of its own pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {module}" for name, module in project["entry-points"][ENTRY_POINT_GROUP].items()]
    install_distribution(
        tmp_path,
        project["name"],
        version=project["version"],
        entry_points="\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]),
        files={"example_hash_backend.py": (EXAMPLE / "example_hash_backend.py").read_text()},
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def plugin(site: Path) -> Iterator[LoadedPlugin]:
    yield load_plugin(NAME)
    del sys.modules["example_hash_backend"]


def load(plugin: LoadedPlugin, *, digest: str = "ab" * 32, config: dict[str, Any] | None = None) -> Any:
    config = CONFIG if config is None else config
    spec = LoadSpec("weights", -1, digest, "safetensors-package", "bert", config, "f32", 128)
    return plugin.hook("synapse_load")(spec=spec, progress=lambda completed, phase, token_ids=(): None)


def embed(plugin: LoadedPlugin, model: Any, *rows: list[int], pooling: Pooling = "mean", normalize: bool = True) -> Any:
    reports: list[tuple[int, str]] = []
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    batch = EmbedBatch(ids, [len(row) for row in rows], [str(row) for row in range(len(rows))], pooling, normalize)
    vectors = plugin.hook("synapse_embed")(
        model=model, batch=batch, progress=lambda completed, phase, token_ids=(): reports.append((completed, phase))
    )
    assert reports == [(done, "inference") for done in range(1, len(rows) + 1)]
    return vectors


@pytest.mark.anyio
async def test_the_example_is_a_runnable_row(site: Path, tmp_path: Path) -> None:
    (entry,) = [found for found in list_backends() if found.name == NAME]
    row = await probe_backend(entry, cache_dir=tmp_path / "cache")
    (shown,) = rows_as_json([row])
    assert shown["runnable"], row
    assert (shown["engine"], shown["tasks"], shown["device_class"]) == ("example-hash", ["embed"], "cpu")
    assert shown["observed"]["cores"] >= shown["required"]["cores"]


def test_its_operations_are_those_of_its_hooks(plugin: LoadedPlugin) -> None:
    assert plugin.operations == {"synapse_load", "synapse_embed", "synapse_unload"}
    with pytest.raises(PluginError, match="does not implement synapse_rerank") as refusal:
        plugin.hook("synapse_rerank")
    assert refusal.value.code == "unsupported_request"


def test_vectors_are_unit_float32_rows_in_order(plugin: LoadedPlugin) -> None:
    model = load(plugin)
    vectors = embed(plugin, model, [1, 2, 3], [4], [2, 1, 3])
    assert (vectors.shape, vectors.dtype) == ((3, 24), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert not np.array_equal(vectors[0], vectors[1])
    assert plugin.hook("synapse_unload")(model=model) is True


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    plugin: LoadedPlugin, pooling: Pooling, normalize: bool
) -> None:
    rows = [[length * 6 + token for token in range(length)] for length in (1, 2, 31, 32, 33, 128)]
    together = embed(plugin, load(plugin), *rows, pooling=pooling, normalize=normalize)
    backwards = embed(plugin, load(plugin), *rows[::-1], pooling=pooling, normalize=normalize)
    for index, row in enumerate(rows):
        alone = embed(plugin, load(plugin), row, pooling=pooling, normalize=normalize)
        assert alone[0].tobytes() == together[index].tobytes() == backwards[::-1][index].tobytes()


def test_pooling_takes_the_token_it_says(plugin: LoadedPlugin) -> None:
    model = load(plugin)
    first, last = embed(plugin, model, [5], [9], normalize=False)
    np.testing.assert_array_equal(embed(plugin, model, [5, 9], pooling="cls", normalize=False)[0], first)
    np.testing.assert_array_equal(embed(plugin, model, [5, 9], pooling="last", normalize=False)[0], last)
    np.testing.assert_array_equal(embed(plugin, model, [5, 9], normalize=False)[0], (first + last) / 2)


def test_another_weight_file_is_another_vector_space(plugin: LoadedPlugin) -> None:
    ours, theirs = (embed(plugin, load(plugin, digest=digest * 32), [1, 2]) for digest in ("ab", "cd"))
    assert abs(float(ours[0] @ theirs[0])) < 0.9


@pytest.mark.parametrize("size", [None, 0, -1, "24", 2.0, True])
def test_a_configuration_it_cannot_use_is_refused_with_its_value(plugin: LoadedPlugin, size: object) -> None:
    with pytest.raises(PluginError, match="hidden_size") as refusal:
        load(plugin, config={"vocab_size": 9} if size is None else {"vocab_size": 9, "hidden_size": size})
    assert refusal.value.code == "config_invalid"
    assert repr(size) in str(refusal.value)


@pytest.mark.parametrize(
    ("row", "said"), [([7, 1000], "token id 1000"), ([-1], "token id -1"), ([1] * 129, "129 tokens")]
)
def test_a_row_it_cannot_embed_is_refused_with_its_value(plugin: LoadedPlugin, row: list[int], said: str) -> None:
    with pytest.raises(PluginError, match=said) as refusal:
        embed(plugin, load(plugin), [1], row)
    assert refusal.value.code == "invalid_request"


def test_it_passes_the_conformance_suite(site: Path, tmp_path: Path) -> None:
    """As an author runs it: pytest over the test file beside the module."""
    run = run_suite(str(EXAMPLE / "test_example_hash.py"), folder=tmp_path, site=site)
    assert (run.status, run.failed) == (pytest.ExitCode.OK, []), run.output
    assert len(run.passed) >= 55


@pytest.mark.anyio
async def test_a_worker_answers_with_the_bits_of_its_hooks(site: Path, plugin: LoadedPlugin, tmp_path: Path) -> None:
    """The same rows through a real worker, token ids in and raw vectors out."""
    request = load_request(tmp_path, CONFIG)
    spec = WorkerSpec(
        NAME,
        "synapse-example-hash-m",
        tmp_path / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
    )
    async with running(spec) as worker:
        assert worker.hello.engine == {"engine": NAME, "version": "1", "build_flags": {"hash": "shake128"}}
        loaded, _ = await worker.request(request, operation="load")
        assert isinstance(loaded, Loaded)
        vectors = await worker_embed(worker, loaded.model_ref, [1, 2, 3], [4])
    expected = embed(plugin, load(plugin, digest=request.artifact_digest), [1, 2, 3], [4])
    np.testing.assert_array_equal(np.array(vectors, dtype=np.float32), expected)
