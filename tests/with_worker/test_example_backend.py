"""The example under ``examples/third_party_backend``, installed as a package would be and used as the host uses it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.backends.backend_row import rows_as_json
from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import list_backends
from synapse_host.backends.loaded_plugin import LoadedPlugin, load_plugin
from synapse_host.hookspecs import EmbedBatch, LoadSpec, PluginError, Pooling
from synapse_host.owned_engine import reference_plugin
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model
from synapse_host.testing.fake_distributions import install_project
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_static import TinyStatic
from synapse_host.testing.running_host import python_path
from synapse_host.testing.suite_runs import run_suite
from synapse_host.testing.workers.running_worker import PATIENCE_S, running
from synapse_host.testing.workers.running_worker import embed as worker_embed
from synapse_host.worker_protocol.messages import Load, Loaded

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_backend"
NAME = "example-static"
TABLE = TinyStatic(seed=4, hidden=24, vocab=1000, positions=600)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example installed from the metadata of its own pyproject.toml."""
    install_project(tmp_path, EXAMPLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path)["PYTHONPATH"])
    return tmp_path


@pytest.fixture
def plugin(site: Path) -> Iterator[LoadedPlugin]:
    yield load_plugin(NAME)
    for module in [name for name in sys.modules if name.partition(".")[0] == "example_static"]:
        del sys.modules[module]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A tiny table and its config.json."""
    return written(tmp_path / "table", TABLE)


def written(directory: Path, table: TinyStatic) -> Path:
    write_model(directory, table)
    return directory


def load(plugin: LoadedPlugin, directory: Path, *, config: dict[str, Any] | None = None, family: str = "static") -> Any:
    path = directory / "model.safetensors"
    descriptor = os.open(path, os.O_RDONLY)
    try:
        told = TABLE.config() if config is None else config
        spec = LoadSpec(str(path), descriptor, "ab" * 32, "safetensors-package", family, told, "f32", 128)
        return plugin.hook("synapse_load")(spec=spec, progress=lambda completed, phase, token_ids=(): None)
    finally:
        os.close(descriptor)


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
    assert (shown["engine"], shown["tasks"], shown["device_class"]) == ("example-static", ["embed"], "cpu")
    assert shown["observed"]["cores"] >= shown["required"]["cores"]


def test_its_operations_are_those_of_its_hooks(plugin: LoadedPlugin) -> None:
    assert plugin.operations == {"synapse_load", "synapse_embed", "synapse_unload"}
    with pytest.raises(PluginError, match="does not implement synapse_rerank") as refusal:
        plugin.hook("synapse_rerank")
    assert refusal.value.code == "unsupported_request"


def test_vectors_are_unit_float32_rows_in_order(plugin: LoadedPlugin, files: Path) -> None:
    model = load(plugin, files)
    vectors = embed(plugin, model, [1, 2, 3], [4], [2, 1, 3])
    assert (vectors.shape, vectors.dtype) == ((3, 24), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert not np.array_equal(vectors[0], vectors[1])
    assert plugin.hook("synapse_unload")(model=model) is True


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_the_reference_s_and_the_same_bits_alone_and_in_any_batch(
    plugin: LoadedPlugin, files: Path, pooling: Pooling, normalize: bool
) -> None:
    rows = [[length * 6 + token for token in range(length)] for length in (1, 2, 31, 32, 33, 128)]
    model = load(plugin, files)
    together = embed(plugin, model, *rows, pooling=pooling, normalize=normalize)
    backwards = embed(plugin, model, *rows[::-1], pooling=pooling, normalize=normalize)
    for index, row in enumerate(rows):
        alone = embed(plugin, model, row, pooling=pooling, normalize=normalize)
        assert alone[0].tobytes() == together[index].tobytes() == backwards[::-1][index].tobytes()
    with loaded_model(reference_plugin, files, max_tokens=128) as reference:
        batch = batch_of([np.array(row, dtype=np.int32) for row in rows], pooling, normalize)
        wanted = reference_plugin.synapse_embed(reference, batch, ignore_progress)
    np.testing.assert_allclose(together, wanted, rtol=0, atol=1e-6)


def test_another_table_is_another_vector_space(plugin: LoadedPlugin, files: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", replace(TABLE, seed=5))
    ours, theirs = (embed(plugin, load(plugin, directory), [1, 2])[0] for directory in (files, other))
    assert abs(float(ours @ theirs)) < 0.9


@pytest.mark.parametrize("size", [None, 0, -1, "24", 2.0, True])
def test_a_configuration_it_cannot_use_is_refused_with_its_value(
    plugin: LoadedPlugin, files: Path, size: object
) -> None:
    with pytest.raises(PluginError, match="hidden_size") as refusal:
        load(plugin, files, config={"vocab_size": 1000} | ({} if size is None else {"hidden_size": size}))
    assert refusal.value.code == "config_invalid"
    assert repr(size) in str(refusal.value)


def test_another_family_is_refused_by_name(plugin: LoadedPlugin, files: Path) -> None:
    with pytest.raises(PluginError, match="family 'bert' is not static") as refusal:
        load(plugin, files, family="bert")
    assert refusal.value.code == "model_unsupported"


@pytest.mark.parametrize(
    ("row", "said"), [([7, 1000], "token id 1000"), ([-1], "token id -1"), ([1] * 129, "129 tokens")]
)
def test_a_row_it_cannot_embed_is_refused_with_its_value(
    plugin: LoadedPlugin, files: Path, row: list[int], said: str
) -> None:
    with pytest.raises(PluginError, match=said) as refusal:
        embed(plugin, load(plugin, files), [1], row)
    assert refusal.value.code == "invalid_request"


def test_it_passes_the_conformance_suite(site: Path, tmp_path: Path) -> None:
    """As an author runs it: pytest over the test file beside the module."""
    run = run_suite(str(EXAMPLE / "test_example_static.py"), folder=tmp_path, site=site)
    assert (run.status, run.failed) == (pytest.ExitCode.OK, []), run.output
    assert len(run.passed) >= 55


@pytest.mark.anyio
async def test_a_worker_answers_with_the_bits_of_its_hooks(
    site: Path, plugin: LoadedPlugin, files: Path, tmp_path: Path
) -> None:
    """The same rows through a real worker, token ids in and raw vectors out."""
    description = plugin.hook("synapse_describe")(settings={})
    spec = WorkerSpec(
        NAME,
        "synapse-example-static-m",
        tmp_path / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
        expected_manifest=description.manifest_digest,
        expected_kernel=description.kernel_revision,
    )
    async with running(spec) as worker:
        assert worker.hello.engine == {"engine": NAME, "version": "0.1.0", "build_flags": {"sum": "f64"}}
        loaded, _ = await worker.request(load_message(files), operation="load")
        assert isinstance(loaded, Loaded)
        vectors = await worker_embed(worker, loaded.model_ref, [1, 2, 3], [4])
    np.testing.assert_array_equal(
        np.array(vectors, dtype=np.float32), embed(plugin, load(plugin, files), [1, 2, 3], [4])
    )


def load_message(directory: Path) -> Load:
    weights, config = directory / "model.safetensors", directory / "config.json"
    digest, config_digest = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (weights, config))
    told = {"config_path": str(config), "config_digest": config_digest, "family": "static", "max_tokens": "128"}
    return Load("load-1", str(weights), digest, "safetensors-package", told | {"dtype": "f32"})
