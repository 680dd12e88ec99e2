"""``python -m synapse_host.worker`` with an installed plugin, driven by the host's own side of the protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import backend_source, install_backend
from synapse_host.testing.workers.fake_engine import FAKE_ENGINE, TRICKS, WEIGHTS, load_request
from synapse_host.testing.workers.running_worker import PATIENCE_S, details_of, embed, running
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Load, Loaded, Ping, Pong, Unload

pytestmark = pytest.mark.anyio

TOKEN = {trick: token for token, trick in TRICKS.items()}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install_backend(folder, "fake", FAKE_ENGINE)
    return folder


@pytest.fixture
def spec(tmp_path: Path, site: Path) -> WorkerSpec:
    return WorkerSpec(
        "fake",
        "synapse-fake-engine-m",
        tmp_path / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
        extra_env={"PYTHONPATH": str(site)},
    )


async def load(worker: Worker, request: Load) -> str:
    reply, _ = await worker.request(request, operation="load")
    assert isinstance(reply, Loaded)
    assert (reply.dims, reply.buckets) == (4, [16, 32])
    return reply.model_ref


async def test_a_whole_life(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        assert worker.hello.engine == {"engine": "fake-engine", "version": "1.2", "build_flags": {"kind": "fake"}}
        assert (worker.hello.manifest_digest, worker.hello.kernel_revision) == ("aa", "r1")
        model_ref = await load(worker, load_request(tmp_path))
        vectors = await embed(worker, model_ref, [5, 6, 8], [9])
        assert vectors == [[3.0, 5.0, 8.0, float(WEIGHTS[0])], [1.0, 9.0, 9.0, float(WEIGHTS[0])]]
        pong, _ = await worker.request(Ping("ping-1"), operation="ping")
        assert isinstance(pong, Pong)
        assert (pong.models_loaded, pong.rss_mb > 0) == (1, True)
        await worker.request(Unload("unload-1", model_ref), operation="unload")
        with pytest.raises(WorkerRefusal) as refused:
            await embed(worker, model_ref, [1])
        assert refused.value.code == "model_not_loaded"
        await worker.stop()
        with pytest.raises(EngineCrashed) as crashed:
            await worker.request(Ping("ping-2"), operation="ping")
        assert details_of(crashed.value)["exit"] == "status 0"


async def test_a_file_put_in_the_place_of_a_loaded_one_changes_nothing(spec: WorkerSpec, tmp_path: Path) -> None:
    """The model is mapped from the descriptor that was hashed, not from the path."""
    async with running(spec) as worker:
        model_ref = await load(worker, load_request(tmp_path))
        (tmp_path / "other").write_bytes(b"\x63 other")
        (tmp_path / "other").replace(tmp_path / "weights.bin")
        assert await embed(worker, model_ref, [1]) == [[1.0, 1.0, 1.0, float(WEIGHTS[0])]]


LOAD_REFUSALS: dict[str, tuple[dict[str, str], str, str]] = {
    "wrong digest": ({"digest": "00"}, "artifact_invalid", "'00'"),
    "no such file": ({"path": "/nonexistent/weights"}, "artifact_invalid", "/nonexistent/weights"),
    "a directory": ({"path": "/"}, "artifact_invalid", "not a regular file"),
    "wrong config digest": ({"config_digest": "11"}, "config_invalid", "'11'"),
    "no config digest": ({"config_digest": ""}, "config_invalid", "'config_digest'"),
    "no such config": ({"config_path": "/nonexistent/config"}, "config_invalid", "/nonexistent/config"),
    "other family": ({"family": "gpt"}, "model_unsupported", "'gpt'"),
    "no family": ({"family": ""}, "config_invalid", "'family'"),
    "other dtype": ({"dtype": "f64"}, "config_invalid", "'f64'"),
    "no limit": ({"max_tokens": ""}, "config_invalid", "'max_tokens'"),
    "odd limit": ({"max_tokens": "-1"}, "config_invalid", "'-1'"),
    "other operation": ({"operation": "rerank"}, "operation_mismatch", "'rerank'"),
}


async def test_every_bad_load_is_refused_typed(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        for name, (changes, code, said) in LOAD_REFUSALS.items():
            with pytest.raises(WorkerRefusal) as refused:
                await worker.request(load_request(tmp_path, **changes), operation="load")
            assert (refused.value.code, said in refused.value.message) == (code, True), name
        await load(worker, load_request(tmp_path))


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ({"refuse": 1}, "model_unsupported", "says refuse"),
        ({"raise": 1}, "load_failed", "RuntimeError: broken loader"),
    ],
)
async def test_what_the_loader_raises_is_the_answer(
    spec: WorkerSpec, tmp_path: Path, config: dict[str, object], code: str, said: str
) -> None:
    async with running(spec) as worker:
        with pytest.raises(WorkerRefusal) as refused:
            await worker.request(load_request(tmp_path, config), operation="load")
        assert (refused.value.code, said in refused.value.message) == (code, True)


@pytest.mark.parametrize("text", ["[]", "{", "7", "{}\x00"])
async def test_a_config_that_is_no_object_is_refused(spec: WorkerSpec, tmp_path: Path, text: str) -> None:
    async with running(spec) as worker:
        with pytest.raises(WorkerRefusal) as refused:
            await worker.request(load_request(tmp_path, text), operation="load")
        assert refused.value.code == "config_invalid"


EMBED_REFUSALS = {
    "raises": ("inference_failed", "ValueError: matrix is singular"),
    "NaN in the second row": ("non_finite_output", 'item "1": '),
    "zeros in the second row": ("zero_output", 'item "1": '),
    "wrong shape": ("inference_failed", "[2, 3]"),
    "wrong dtype": ("inference_failed", "float64"),
    "out of memory": ("oom", "7 GiB"),
    "unlawful progress": ("inference_failed", "completed 1 after 1"),
    "PluginError": ("inference_failed", "device lost"),
}


async def test_every_failed_embedding_is_refused_typed_and_the_worker_serves_on(
    spec: WorkerSpec, tmp_path: Path
) -> None:
    async with running(spec) as worker:
        model_ref = await load(worker, load_request(tmp_path))
        for trick, (code, said) in EMBED_REFUSALS.items():
            with pytest.raises(WorkerRefusal) as refused:
                await embed(worker, model_ref, [TOKEN[trick]], [1, 2])
            assert (refused.value.code, said in refused.value.message) == (code, True), trick
        assert len(await embed(worker, model_ref, [1], [2])) == 2


async def test_a_refusal_drains_the_raw_frame_of_its_request(spec: WorkerSpec, tmp_path: Path) -> None:
    """The token ids spell JSON: left in the stream they would be taken for the next request."""
    bait = json.dumps({"type": "PING", "req_id": "bait"}).encode().ljust(64)
    sixteen, fifteen, none = ({"id": "a", "n_tokens": count} for count in (16, 15, 0))
    async with running(spec) as worker:
        model_ref = await load(worker, load_request(tmp_path))
        for reference, pooling, items, code in (
            ("model-99", "mean", [sixteen], "model_not_loaded"),
            (model_ref, "max", [sixteen], "invalid_request"),
            (model_ref, "mean", [], "invalid_request"),
            (model_ref, "mean", [fifteen], "invalid_request"),
            (model_ref, "mean", [sixteen, none], "invalid_request"),
        ):
            message = EmbedBatchRequest("embed-1", reference, pooling, True, items)
            with pytest.raises(WorkerRefusal) as refused:
                await worker.request(message, bait, operation="embed")
            assert refused.value.code == code
        pong, _ = await worker.request(Ping("ping-1"), operation="ping")
        assert pong.to_wire()["req_id"] == "ping-1"


async def test_prints_of_native_code_go_to_the_log_ring_not_to_the_socket(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        model_ref = await load(worker, load_request(tmp_path))
        assert len(await embed(worker, model_ref, [TOKEN["prints on descriptor 1 and 2"]])) == 1
        await worker.stop()
        assert worker.output_tail().splitlines() == ["stdout: embedding", "stderr: complaining"]


async def test_a_plugin_that_leaves_ends_the_request_with_its_status(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        model_ref = await load(worker, load_request(tmp_path))
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, model_ref, [TOKEN["raises SystemExit"]])
        assert details_of(crashed.value)["exit"] == "status 12"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("raise RuntimeError('no such driver')", "no such driver"),
        ("import os\nos._exit(3)", ""),
        ("synapse_rerank = None", "synapse_rerank"),
    ],
)
async def test_a_plugin_that_cannot_be_loaded_is_a_failed_start(
    spec: WorkerSpec, site: Path, before: str, said: str
) -> None:
    (site / "fake_backend.py").write_text(backend_source("fake", before=before))
    async with anyio.create_task_group() as tasks:
        with pytest.raises(EngineCrashed) as crashed:
            await Worker.start(spec, tasks)
    assert details_of(crashed.value)["reason"] == "exited"
    assert said in details_of(crashed.value)["output_tail"]


async def test_a_backend_that_is_not_installed_is_named(spec: WorkerSpec) -> None:
    async with anyio.create_task_group() as tasks:
        with pytest.raises(EngineCrashed) as crashed:
            await Worker.start(replace(spec, backend="vapour"), tasks)
    assert "'vapour'" in details_of(crashed.value)["output_tail"]
