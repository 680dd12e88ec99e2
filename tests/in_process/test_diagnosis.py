"""What the doctor says of files that were spoilt in single ways; the whole command is tested end to end."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import CacheLayout
from synapse_host.cli.diagnosis import diagnose
from synapse_host.cli.finding import Finding
from synapse_host.errors import StoreFailure
from synapse_host.settings import resolve_paths
from synapse_host.testing.download_room import manifest_of, running_room

MODEL = b"weights" * 100
MANIFEST = manifest_of({"model": MODEL})
SHA = MANIFEST.files[0].sha256


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one model installed."""
    monkeypatch.setenv("SYNAPSE_HOME", str(tmp_path))
    paths = resolve_paths({"SYNAPSE_HOME": str(tmp_path)})

    async def install() -> None:
        async with running_room(paths.data_dir, [MODEL], cache_root=paths.cache_dir / "models") as running:
            await running.download(MANIFEST)

    anyio.run(install)
    (paths.data_dir / "synapse.db").rename(paths.store_file)
    return tmp_path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def problems(*, hash_content: bool = True) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnose(hash_content=hash_content) if not finding.ok}


def _zeros(blob: Path) -> None:
    blob.write_bytes(b"\0" * len(MODEL))


def _cut(blob: Path) -> None:
    blob.write_bytes(MODEL[:-1])


def _gone(blob: Path) -> None:
    blob.unlink()


def test_a_home_in_order_has_no_problems(home: Path) -> None:
    assert problems() == {}


@pytest.mark.parametrize(
    ("spoil", "hashed", "quick"),
    [
        (_zeros, {"cached content", "installed models", "quarantine"}, set()),
        (_cut, {"cached content", "installed models", "quarantine"}, {"installed models"}),
        (_gone, {"cached content", "installed models"}, {"installed models"}),
    ],
)
def test_a_spoilt_file_is_named_with_the_model_and_what_to_do(
    home: Path, spoil: Callable[[Path], None], hashed: set[str], quick: set[str]
) -> None:
    spoil(home / "cache" / "models" / "blobs" / SHA)
    assert set(problems(hash_content=False)) == quick
    found = problems()
    assert set(found) == hashed
    assert found["installed models"].remedy == "synapse-host models download tiny"
    assert "model.bin of tiny" in found["installed models"].seen


def test_damaged_content_is_said_to_have_been_set_aside_and_quick_leaves_it(home: Path) -> None:
    blob = home / "cache" / "models" / "blobs" / SHA
    _zeros(blob)
    problems(hash_content=False)
    assert blob.exists()
    assert "damaged, and was set aside in quarantine just now" in problems()["cached content"].seen
    assert not blob.exists()


@pytest.mark.parametrize("subject", ["data", "cache"])
def test_a_full_disk_is_a_problem_and_its_free_bytes_are_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    full = home / subject
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        facts = list(real(path))
        if path == full:
            facts[1:5] = [4096, 100, 50, 3]
        return os.statvfs_result(facts)

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = problems()
    assert set(found) == {f"{subject} directory"}
    assert f"{full} has {3 * 4096} bytes free" in found[f"{subject} directory"].seen


def test_a_model_cache_put_on_another_disk_is_looked_at_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    assert "model cache directory" not in {finding.subject for finding in diagnose(hash_content=False)}
    monkeypatch.setenv("SYNAPSE_CACHE_DIRECTORY", str(elsewhere))
    assert "model cache directory" in {finding.subject for finding in diagnose(hash_content=False)}
    real = os.statvfs
    full = os.statvfs_result((4096, 4096, 100, 50, 3, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full if path == elsewhere else real(path))
    assert f"{elsewhere} has {3 * 4096} bytes free" in problems()["model cache directory"].seen


def test_a_disk_without_room_for_another_file_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1 << 30, 1 << 30, 1 << 30, 9, 0, 0, 0, 255))
    )
    assert set(problems()) == {"data directory", "cache directory", "run directory"}


def test_a_socket_nobody_serves_or_others_may_open_is_a_problem(home: Path) -> None:
    path = resolve_paths({"SYNAPSE_HOME": str(home)}).host_socket
    path.parent.mkdir(parents=True)
    path.touch(mode=0o666)
    path.chmod(0o666)
    found = problems()
    assert set(found) == {"socket"}


def test_a_store_that_was_removed_under_a_running_host_is_a_problem(home: Path) -> None:
    paths = resolve_paths({"SYNAPSE_HOME": str(home)})
    paths.host_socket.parent.mkdir(parents=True)
    paths.store_file.rename(home / "elsewhere")
    with socket.socket(socket.AF_UNIX) as host:
        host.bind(str(paths.host_socket))
        paths.host_socket.chmod(0o600)
        host.listen()
        assert "restart the host" in str(problems(hash_content=False)["store"].remedy)
    paths.host_socket.unlink()
    assert "store" not in problems(hash_content=False)


def test_a_cache_that_is_no_directory_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNAPSE_HOME", str(tmp_path))
    monkeypatch.setenv("SYNAPSE_CACHE_DIRECTORY", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    assert set(problems()) == {"model cache"}


def test_the_pins_of_a_host_that_is_no_more_are_told_with_the_way_to_give_them_up(home: Path) -> None:
    paths = resolve_paths({"SYNAPSE_HOME": str(home)})
    lost = home.parent / f"{home.name}-lost"

    async def install() -> str:
        async with running_room(lost, [MODEL], cache_root=paths.cache_dir / "models") as running:
            await running.download(MANIFEST)
            return running.room.cache.owner

    host = anyio.run(install)
    (lost / "synapse.db").rename(lost / paths.store_file.name)
    assert problems() == {}, "a host that is only stopped is no problem"
    record = paths.cache_dir / "models" / "hosts" / f"{host}.json"
    written = record.read_bytes()
    record.unlink()
    found = problems()["host of the cache"]
    assert found.seen.startswith(f"{host} (-) keeps 1 files, {len(MODEL)} bytes: never noted")
    assert found.remedy is not None
    assert f"synapse-opctl cache forget {host} --force" in found.remedy
    record.write_text("{")
    assert str(record) in problems()["cache record"].seen
    record.write_bytes(written)
    assert problems() == {}


def test_a_link_that_leads_nowhere_is_told_and_everything_else_looked_at(home: Path) -> None:
    """A dangling link, as a cleaned disk or a careless copy leaves it, in each folder of the cache."""
    root = home / "cache" / "models"
    for folder in ("metadata", "leases", "incoming", "quarantine", "derived", "hosts"):
        (root / folder / "dangling").symlink_to("nowhere")
    found = problems()
    assert set(found) == {"quarantine"}
    assert "holds 1 damaged file" in found["quarantine"].seen
    blob = root / "blobs" / SHA
    blob.unlink()
    blob.symlink_to("nowhere")
    for hash_content in (False, True):
        found = problems(hash_content=hash_content)
        assert "model.bin of tiny" in found["installed models"].seen
        assert found["installed models"].remedy == "synapse-host models download tiny"
        assert f"{SHA} is missing" in found["cached content"].seen if hash_content else True
        assert "model cache" not in found


@pytest.mark.parametrize("folder", ["quarantine", "metadata", "blobs", "hosts", "incoming", "leases", "derived"])
def test_a_folder_that_cannot_be_read_is_named_and_the_others_looked_at(
    home: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = home / "cache" / "models"
    (root / folder).rename(root / "aside")
    (root / folder).write_text("no folder")
    found = problems()
    assert "installed models" not in found or folder == "blobs", "it was not looked at, or is thought lost"
    assert any(str(root / folder) in finding.seen for finding in found.values()), found
    assert all(finding.remedy for finding in found.values())
    if folder == "quarantine":
        assert set(found) <= {"model cache", "quarantine"}


def test_a_folder_for_what_comes_on_another_disk_is_told(home: Path, elsewhere: Path) -> None:
    incoming = home / "cache" / "models" / "incoming"
    incoming.rmdir()
    incoming.symlink_to(elsewhere)
    found = problems()
    assert set(found) == {"incoming content"}
    assert f"{incoming} lies on another file system" in found["incoming content"].seen
    assert "on one file system" in (found["incoming content"].remedy or "")
    with pytest.raises(StoreFailure, match="on one file system"):
        BlobCache(CacheLayout(incoming.parent), "host-a").ingest()
    assert list(elsewhere.iterdir()) == []


def test_a_cache_that_another_user_owns_is_told_folder_by_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path.name == "quarantine":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = problems()
    assert set(found) == {"quarantine"}
    assert "Permission denied" in found["quarantine"].seen
    assert found["quarantine"].remedy is not None
    assert "right" in found["quarantine"].remedy
