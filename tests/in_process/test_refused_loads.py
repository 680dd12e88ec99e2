"""A refused file is told with the remedy that helps: restored where it changed, replaced where it did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.lanes.worker_errors import load_error
from synapse_host.model_files.source_files import digest_file
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.testing.workers.stub_lane import stub_model

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("changed", "remedy", "other"),
    [(True, "restore the file", "as it was"), (False, "the file is as it was registered", "restore")],
    ids=["another file", "the same file"],
)
async def test_the_remedy_is_one_that_helps(tmp_path: Path, changed: bool, remedy: str, other: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    registered = digest_file(path)
    if changed:
        path.write_bytes(b"others")
    model = replace(
        stub_model(), model_path=str(path), model_sha256=registered.sha256, model_size=registered.size, shards=()
    )
    error = await load_error(WorkerRefusal("artifact_invalid", "tensor 'w' passes f16"), model)
    assert f"tensor 'w' passes f16; {remedy}" in error.message
    assert other not in error.message
    details = error.details or {}
    assert (details["file"], details["actual_sha256"] == details["expected_sha256"]) == (path.name, not changed)
