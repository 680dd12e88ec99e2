"""Model files: found inside their directory only, digested from one descriptor."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.identity.digests import sha256_file, sha256_hex
from synapse_host.model_files import source_files
from synapse_host.model_files.source_files import FileDigest, digest_file, require_digest, resolve_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "onnx").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "onnx" / "config.json").write_bytes(b"{}")
    (directory / "link.json").symlink_to("onnx/config.json")
    (tmp_path / "secret").write_bytes(b"secret")
    (directory / "escape").symlink_to(tmp_path / "secret")
    (directory / "updir").symlink_to("..")
    (directory / "loop").symlink_to("loop")
    (directory / "dangling").symlink_to("nowhere")
    os.mkfifo(directory / "pipe")
    return directory


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model.safetensors", "model.safetensors"),
        ("onnx/config.json", "onnx/config.json"),
        ("./onnx//config.json", "onnx/config.json"),
        ("link.json", "onnx/config.json"),
    ],
)
def test_a_name_below_the_directory_is_found(root: Path, name: str, found: str) -> None:
    assert resolve_inside(root, name) == root.resolve() / found


def test_the_directory_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert resolve_inside(tmp_path / "alias", "model.safetensors") == root.resolve() / "model.safetensors"


def hub_snapshot(cache: Path) -> Path:
    """A directory as the hub client lays it out: every file a link to a blob of the same repository."""
    snapshot = cache / "models--owner--name" / "snapshots" / "1f3a"
    blobs = cache / "models--owner--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "77ab").write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/77ab")
    return snapshot


def test_a_snapshot_of_the_hub_cache_may_link_to_its_blobs(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    assert resolve_inside(snapshot, "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("target", ["models--owner--name/refs", "models--other--name/blobs/1", "secret"])
def test_a_snapshot_may_link_nowhere_else(tmp_path: Path, target: str) -> None:
    snapshot = hub_snapshot(tmp_path)
    (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / target).write_bytes(b"secret")
    (snapshot / "config.json").symlink_to(tmp_path / target)
    with pytest.raises(InvalidRequest, match="outside"):
        resolve_inside(snapshot, "config.json")


def test_blobs_beside_a_directory_of_any_other_name_stay_outside(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    moved = snapshot.parent.parent.rename(tmp_path / "owner-name") / "snapshots" / "1f3a"
    with pytest.raises(InvalidRequest, match="outside"):
        resolve_inside(moved, "model.safetensors")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "is no file name"),
        (".", "is no file name"),
        ("a\0b", "is no file name"),
        ("/etc/passwd", "is absolute"),
        ("../secret", "climbs out"),
        ("onnx/../../secret", "climbs out"),
        ("onnx/..", "climbs out"),
        ("escape", "outside"),
        ("updir/secret", "outside"),
        ("loop", "cannot be reached"),
        ("onnx", "is no regular file"),
        ("pipe", "is no regular file"),
        ("model.safetensors/x", "cannot be reached"),
        ("n" * 300, "cannot be reached"),
        ("\ud800", "cannot be reached"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_by_name(root: Path, name: str, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve_inside(root, name)
    assert repr(name) in caught.value.message
    assert fault in caught.value.message
    assert caught.value.details == {"file": name}


@pytest.mark.parametrize("name", ["absent.json", "dangling", "onnx/absent"])
def test_a_missing_file_is_artifact_invalid(root: Path, name: str) -> None:
    with pytest.raises(ArtifactInvalid, match="does not exist") as caught:
        resolve_inside(root, name)
    assert caught.value.details == {"file": name}


@pytest.mark.parametrize("bad", ["absent", "secret", "x\0y"])
def test_a_root_that_is_no_directory_is_refused(root: Path, tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve_inside(tmp_path / bad, "model.safetensors")
    assert caught.value.details == {"path": str(tmp_path / bad)}


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_file_is_digested_whole(tmp_path: Path, size: int) -> None:
    content = os.urandom(1024) * (size // 1024) + b"x" * (size % 1024)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert digest_file(path) == FileDigest(hashlib.sha256(content).hexdigest(), size)
    assert sha256_file(path) == sha256_hex(content)


def test_a_descriptor_is_digested_from_its_start_and_left_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb", buffering=0) as file:
        file.seek(7)
        assert sha256_file(file.fileno()) == sha256_hex(b"0123456789")
        assert file.tell() == 7


@pytest.mark.parametrize("name", ["absent", "onnx", "pipe"])
def test_what_cannot_be_digested_is_artifact_invalid(root: Path, name: str) -> None:
    with pytest.raises(ArtifactInvalid, match=repr(name)) as caught:
        digest_file(root / name)
    assert caught.value.details == {"file": name}


def test_a_file_that_grows_while_it_is_read_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "model.safetensors"

    def digest_and_grow(descriptor: int) -> str:
        digest = sha256_file(descriptor)
        with path.open("ab") as file:
            file.write(b"more")
        return digest

    monkeypatch.setattr(source_files, "sha256_file", digest_and_grow)
    with pytest.raises(ArtifactInvalid, match="changed its size"):
        digest_file(path)


def test_a_wrong_digest_names_both_and_the_size() -> None:
    actual = FileDigest("a" * 64, 7)
    require_digest("model.safetensors", actual, "A" * 64)
    with pytest.raises(ArtifactInvalid) as caught:
        require_digest("model.safetensors", actual, "b" * 64)
    assert "a" * 64 in caught.value.message
    assert "b" * 64 in caught.value.message
    assert caught.value.details == {
        "file": "model.safetensors",
        "expected_sha256": "b" * 64,
        "actual_sha256": "a" * 64,
        "actual_size": 7,
    }
