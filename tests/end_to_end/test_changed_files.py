"""Files that change under a registered model are refused by name, and restoring them is all it takes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import ArtifactInvalid, InvalidRequest, SubstitutionRejected
from synapse_host.testing.models.spoiled_models import with_config, with_tensors
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.refusal import refusal
from synapse_host.testing.running_host import RunningHost, load_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
OTHER = TinyBert(seed=6, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
MODEL, TEXT = "changing", "the tide came in"
ARTIFACT = "file expected_sha256 actual_sha256 expected_size actual_size recovery_op"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    """A host that has certified the weights of both models; certification belongs to the fingerprint."""
    home = certified(tmp_path_factory.mktemp("changed-files"))
    with RunningHost(home) as running, running.client() as client:
        write_model(home / "other", OTHER)
        load_model(client, home / "other", engine="reference", model_id="other")
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


@pytest.fixture
def directory(tmp_path: Path, client: Client) -> Path:
    """A sound model, loaded as ``changing``."""
    write_model(tmp_path / "model", TINY)
    load_model(client, tmp_path / "model", engine="reference", model_id=MODEL, certify=False)
    return tmp_path / "model"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def appended(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def one_bit_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [appended, one_bit_flipped, missing])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_file_is_refused_until_it_is_restored(client: Client, directory: Path, name: str, change) -> None:  # type: ignore[no-untyped-def]
    path = directory / name
    before = client.embed_query(MODEL, TEXT).vectors
    shutil.copy2(path, directory / "kept")
    expected = sha256(path)
    change(path)
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, before)  # the loaded bytes serve on
    client.model_unload(MODEL)
    for _ in range(3):
        with pytest.raises(ArtifactInvalid) as caught:
            client.embed_query(MODEL, TEXT)
        answer = {"result": {"module_generation": 1, "error": caught.value.to_wire()}}
        error = refusal("artifact_invalid", "result", name, details=ARTIFACT).check(answer)
        assert error["details"]["file"] == name
        assert error["details"]["expected_sha256"] == expected
        assert error["details"]["actual_sha256"] == (sha256(path) if path.exists() else None)
    shutil.move(directory / "kept", path)
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, before)


def test_a_file_that_says_the_same_in_other_bytes_is_loaded_again_under_its_fingerprint(
    client: Client, directory: Path
) -> None:
    """Padding is no part of a tokenizer's identity (reading 6); the file's own digest is still checked."""
    before = client.embed_query(MODEL, TEXT)
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "padding": None}))
    client.model_unload(MODEL)
    with pytest.raises(ArtifactInvalid, match="load"):
        client.embed_query(MODEL, TEXT)
    load_model(client, directory, engine="reference", model_id=MODEL, certify=False)
    after = client.embed_query(MODEL, TEXT)
    assert after.fingerprint == before.fingerprint
    np.testing.assert_array_equal(after.vectors, before.vectors)


BROKEN = {
    "refused by the host": (with_config(model_type="llama"), InvalidRequest),
    "refused by the worker": (with_tensors(OTHER, lambda tensors: tensors.popitem()), ArtifactInvalid),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_load_that_fails_leaves_the_model_of_its_id_as_it_was(client: Client, directory: Path, name: str) -> None:
    spoil, expected = BROKEN[name]
    before = client.embed_query(MODEL, TEXT)
    listed = client.models_list()["models"]
    broken = directory.parent / "broken"
    write_model(broken, OTHER)
    spoil(broken)
    with pytest.raises(expected):
        load_model(client, broken, engine="reference", model_id=MODEL, certify=False)
    after = client.embed_query(MODEL, TEXT)
    assert after.fingerprint == before.fingerprint
    np.testing.assert_array_equal(after.vectors, before.vectors)
    assert [row["fingerprints"] for row in client.models_list()["models"]] == [row["fingerprints"] for row in listed]


@pytest.mark.parametrize("name", BROKEN)
def test_a_load_that_fails_leaves_nothing_in_the_store(
    tmp_path: Path, certified: Callable[[Path], Path], name: str
) -> None:
    spoil, expected = BROKEN[name]
    write_model(tmp_path / "broken", OTHER)
    spoil(tmp_path / "broken")
    host = RunningHost(certified(tmp_path / "home"))
    with host, host.client() as client:
        before = client.embed_query("tiny", TEXT)
        for model_id in ("tiny", "another"):
            with pytest.raises(expected):
                load_model(client, tmp_path / "broken", engine="reference", model_id=model_id, certify=False)
    with host, host.client() as client:
        assert [row["model_id"] for row in client.models_list()["models"]] == ["tiny"]
        np.testing.assert_array_equal(client.embed_query("tiny", TEXT).vectors, before.vectors)


def test_another_model_under_the_same_id_is_another_identity(client: Client, directory: Path) -> None:
    before = client.embed_query(MODEL, TEXT)
    write_model(directory.parent / "other", OTHER)
    status = load_model(client, directory.parent / "other", engine="reference", model_id=MODEL, certify=False)
    after = client.embed_query(MODEL, TEXT)
    assert after.fingerprint == status["fingerprint"] != before.fingerprint
    assert not np.array_equal(after.vectors, before.vectors)
    with pytest.raises(SubstitutionRejected, match=before.fingerprint):
        client.embed_query(MODEL, TEXT, required_fingerprint=before.fingerprint)


def test_two_loads_of_one_id_at_once_end_in_one_of_them(host: RunningHost, client: Client, tmp_path: Path) -> None:
    for name, model in (("one", TINY), ("two", OTHER)):
        write_model(tmp_path / name, model)
    jobs = [
        client.model_load(source="file", path=str(tmp_path / name), engine="reference", model_id="raced")["job_id"]
        for name in ("one", "two", "one", "two")
    ]
    ended = [client.wait_for_load(job)["fingerprint"] for job in jobs]
    assert len(set(ended)) == 2
    (row,) = [row for row in client.models_list()["models"] if row["model_id"] == "raced"]
    assert row["fingerprints"][0] in ended
    assert row["state"] == "ready"
    assert host.process.poll() is None
