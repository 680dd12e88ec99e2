"""A refused load is told with one remedy, the one that helps, and a refusal of the machine with what clients read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.errors import BackendUnavailable
from synapse_host.lanes.worker_errors import load_error
from synapse_host.model_files.source_files import digest_file
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.testing.workers.stub_lane import stub_model
from synapse_host.worker.artifact import PluginError, open_verified

pytestmark = pytest.mark.anyio


def registered(path: Path) -> RegisteredModel:
    path.write_bytes(b"weights")
    was = digest_file(path)
    return replace(stub_model(), model_path=str(path), model_sha256=was.sha256, model_size=was.size, shards=())


@pytest.mark.parametrize(
    ("now", "remedy"),
    [
        (b"others", "restore the file, or load the model again to register it as it is now"),
        (None, "restore the file"),
    ],
    ids=["another file", "no file"],
)
async def test_a_worker_that_finds_another_file_leaves_the_remedy_to_the_host(
    tmp_path: Path, now: bytes | None, remedy: str
) -> None:
    path = tmp_path / "model.safetensors"
    model = registered(path)
    path.unlink()
    if now is not None:
        path.write_bytes(now)
    with pytest.raises(PluginError) as refused:
        open_verified(str(path), model.model_sha256)
    error = await load_error(WorkerRefusal(refused.value.code, str(refused.value)), model)
    assert error.message.split("; ")[1:] == [remedy]
    details = error.details or {}
    assert (details["file"], details["actual_sha256"]) == (path.name, None if now is None else digest_file(path).sha256)


@pytest.mark.parametrize(
    ("said", "remedies"),
    [
        ("tensor 'w' is none", ["the file is as it was registered, so load another, or this one with another dtype"]),
        ("tensor 'w' passes f16; load it as f32", ["load it as f32"]),
    ],
    ids=["worker says no remedy", "worker says one"],
)
async def test_a_file_that_is_as_it_was_registered_is_not_to_be_restored(
    tmp_path: Path, said: str, remedies: list[str]
) -> None:
    error = await load_error(WorkerRefusal("artifact_invalid", said), registered(tmp_path / "model.safetensors"))
    told = error.message.split("; ")[1:]
    assert len(told) == len(remedies)
    assert all(part.startswith(remedy) for part, remedy in zip(told, remedies, strict=True))
    details = error.details or {}
    assert details["actual_sha256"] == details["expected_sha256"]


async def test_a_worker_without_its_device_names_model_and_backend() -> None:
    model = replace(stub_model(), catalog_id=None)
    error = await load_error(WorkerRefusal("backend_missing", "device 'x' is software; allow it"), model)
    assert isinstance(error, BackendUnavailable)
    details = error.details or {}
    assert (details["catalog_id"], details["lane_id"]) == (None, model.model_id)
    assert details["backends"] == [
        {"backend": model.backend, "reason": "worker_missing", "reason_detail": "backend_missing"}
    ]
