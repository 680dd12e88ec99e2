"""Every way a start can fail is one typed error and leaves nothing behind."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.workers.running_worker import details_of, embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector

pytestmark = pytest.mark.anyio


async def crash_of_start(spec: WorkerSpec) -> EngineCrashed:
    async with anyio.create_task_group() as tasks:
        with pytest.raises(EngineCrashed) as crashed:
            await Worker.start(spec, tasks)
    assert not spec.socket_path.exists()
    return crashed.value


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("wrong_nonce", "nonce_mismatch"),
        ("wrong_version", "version_mismatch"),
        ("float_version", "version_mismatch"),
        ("not_json", "malformed_hello"),
        ("early_frame", "malformed_hello"),
    ],
)
async def test_a_bad_hello_is_refused_and_the_worker_killed(tmp_path: Path, kind: str, code: str) -> None:
    details = details_of(await crash_of_start(misbehaving_spec(tmp_path, kind)))
    assert details["reason"] == "handshake_refused"
    assert details["handshake_code"] == code
    assert details["exit"] == "signal SIGKILL"


@pytest.mark.parametrize(
    ("expectation", "code"),
    [
        ({"expected_manifest": "bb", "expected_kernel": "r1"}, "manifest_mismatch"),
        ({"expected_manifest": "aa", "expected_kernel": "r1"}, "kernel_revision_mismatch"),
    ],
)
async def test_other_kernels_than_expected_are_refused(tmp_path: Path, expectation: dict[str, str], code: str) -> None:
    error = await crash_of_start(misbehaving_spec(tmp_path, "other_kernels", **expectation))
    details = details_of(error)
    assert details["handshake_code"] == code
    assert (details["expected"], details["actual"]) == (("bb", "aa") if code == "manifest_mismatch" else ("r1", "r9"))
    assert (error.error_class, error.safe_to_retry) == ("permanent", False)
    for said in (details["expected"], details["actual"], "load the model again and probe it", "reinstall the plugin"):
        assert said in error.message


async def test_expected_kernels_are_accepted(tmp_path: Path) -> None:
    async with running(
        misbehaving_spec(tmp_path, "other_kernels", expected_manifest="aa", expected_kernel="r9")
    ) as worker:
        assert worker.hello.kernel_revision == "r9"


async def test_an_engine_that_is_never_bound_may_present_any_kernels(tmp_path: Path) -> None:
    expected = {"expected_manifest": "bb", "expected_kernel": "r1"}
    async with running(misbehaving_spec(tmp_path, "other_kernels", engine="llama.cpp-worker", **expected)) as worker:
        assert worker.hello.kernel_revision == "r9"
    error = await crash_of_start(misbehaving_spec(tmp_path, "other_kernels", engine="owned-vulkan", **expected))
    assert details_of(error)["handshake_code"] == "manifest_mismatch"


async def test_silence_before_hello_ends_the_wait(tmp_path: Path) -> None:
    late = misbehaving_spec(tmp_path, "late_hello", hello_deadline_s=0.2)
    error = await crash_of_start(late)
    assert details_of(error)["reason"] == "handshake_timeout"
    assert "no HELLO within 0.2 s" in error.message


async def test_a_worker_that_never_connects_is_killed(tmp_path: Path) -> None:
    error = await crash_of_start(misbehaving_spec(tmp_path, "never_connects", accept_deadline_s=0.2))
    assert details_of(error)["reason"] == "handshake_timeout"
    assert details_of(error)["exit"] == "signal SIGKILL"


@pytest.mark.parametrize(
    ("kind", "ending", "words"),
    [
        ("exits_before_connect", "status 4", "stderr: no such device\n"),
        ("exits_before_hello", "status 9", "stderr: driver too old\n"),
    ],
)
async def test_an_early_exit_is_told_with_its_last_words(tmp_path: Path, kind: str, ending: str, words: str) -> None:
    details = details_of(await crash_of_start(misbehaving_spec(tmp_path, kind)))
    assert (details["reason"], details["exit"], details["output_tail"]) == ("exited", ending, words)


async def test_a_program_that_does_not_exist_is_a_typed_failure(tmp_path: Path) -> None:
    error = await crash_of_start(replace(stub_spec(tmp_path), command=("/nonexistent/worker",)))
    assert details_of(error)["reason"] == "spawn_failed"
    assert "/nonexistent/worker" in error.message


async def test_a_directory_that_cannot_be_made_is_a_typed_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "s.sock"
    async with anyio.create_task_group() as tasks:
        with pytest.raises(EngineCrashed, match="cannot listen") as crashed:
            await Worker.start(replace(stub_spec(tmp_path), socket_path=path), tasks)
    assert details_of(crashed.value)["reason"] == "spawn_failed"


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    spec = stub_spec(tmp_path)
    spec.socket_path.parent.mkdir(parents=True)
    spec.socket_path.touch()
    async with running(spec) as worker:
        assert worker.alive


async def test_the_negotiated_frame_size_holds(tmp_path: Path) -> None:
    async with running(misbehaving_spec(tmp_path, "small_frames")) as worker:
        assert worker.max_frame == 4096
        model_ref = await load(worker)
        with pytest.raises(InvalidRequest, match=r"8000 bytes.*4096"):
            await embed(worker, model_ref, list(range(2000)))
        assert await embed(worker, model_ref, [1]) == [stub_vector([1], 4)]


async def test_the_socket_is_the_owners_alone(tmp_path: Path) -> None:
    show = "import os, sys; p = sys.argv[2]; print([oct(os.stat(x).st_mode & 0o777) for x in (os.path.dirname(p), p)])"
    spec = replace(stub_spec(tmp_path), command=(sys.executable, "-c", show))
    assert details_of(await crash_of_start(spec))["output_tail"] == "stdout: ['0o700', '0o600']\n"
