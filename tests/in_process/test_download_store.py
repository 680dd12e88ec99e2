"""Jobs, keys and installs in a real SQLite file: what is shared, what conflicts, what ends once, what expires."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlmodel import Session

from synapse_host.errors import IdempotencyConflict, ModelInUse, StoreFailure
from synapse_host.store import upkeep
from synapse_host.store.database import Store
from synapse_host.store.download_store import DownloadStore
from synapse_host.store.download_tables import DownloadKeyRow, DownloadRow, InstallMemberRow, InstallRow
from synapse_host.store.install_store import InstallStore
from synapse_host.store.migrations import migrate
from synapse_host.store.module_store import ModuleStore

pytestmark = pytest.mark.anyio

MANIFEST, OTHER = "a" * 64, "b" * 64
NEVER = -1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "s.db")
    yield opened
    opened.close()


@pytest.fixture
def downloads(store: Store) -> DownloadStore:
    return DownloadStore(store)


def job(name: str = "j1", manifest: str = MANIFEST) -> DownloadRow:
    return DownloadRow(
        job_id=name, catalog_id="gte", manifest_digest=manifest, module_generation=1, created_ms=10, state="open"
    )


def key(name: str = "k", digest: str = "d" * 64, job_id: str = "") -> DownloadKeyRow:
    return DownloadKeyRow(request_key=name, request_digest=digest, job_id=job_id)


def install(manifest: str = MANIFEST) -> tuple[InstallRow, list[InstallMemberRow]]:
    owner = {"catalog_id": "gte", "manifest_digest": manifest}
    members = [
        InstallMemberRow(**owner, role=role, name=f"{role}.x", sha256=digit * 64, size=5)
        for role, digit in (("model", "1"), ("tokenizer", "2"))
    ]
    return InstallRow(**owner, installed_ms=20), members


async def begin(
    downloads: DownloadStore, fresh: DownloadRow, bound: DownloadKeyRow, *, complete: bool = False, expired: int = NEVER
) -> str:
    return (await downloads.begin(fresh, bound, complete=complete, expired_ms=expired)).job_id


async def test_an_open_job_of_the_manifest_is_shared_by_every_key(downloads: DownloadStore) -> None:
    assert await begin(downloads, job("j1"), key("k")) == "j1"
    assert await begin(downloads, job("j2"), key("k")) == "j1"
    assert await begin(downloads, job("j3"), key("other")) == "j1"
    assert await begin(downloads, job("j4", OTHER), key("third", "e" * 64)) == "j4"
    assert await downloads.open_count() == 2


async def test_a_key_bound_to_other_content_conflicts_even_after_its_job_ended(downloads: DownloadStore) -> None:
    await begin(downloads, job(), key("k"))
    for _ in range(2):
        with pytest.raises(IdempotencyConflict) as refused:
            await begin(downloads, job("j2", OTHER), key("k", "e" * 64))
        assert refused.value.details == {"request_key": "k", "job_id": "j1"}
        await downloads.end("j1", 30, error_json=None)


async def test_a_committed_job_answers_its_key_only_while_the_entry_is_complete(downloads: DownloadStore) -> None:
    await begin(downloads, job(), key("k"))
    assert await downloads.commit("j1", 20, *install())
    assert await begin(downloads, job("j2"), key("k"), complete=True) == "j1"
    assert await begin(downloads, job("j3"), key("new"), complete=True) == "j3"
    await downloads.end("j3", 25, error_json=None)
    assert await begin(downloads, job("j4"), key("k"), complete=False) == "j4"


@pytest.mark.parametrize("error", [None, json.dumps({"code": "download_failed"})])
async def test_the_key_of_a_failed_or_cancelled_job_starts_another(downloads: DownloadStore, error: str | None) -> None:
    await begin(downloads, job(), key("k"))
    await downloads.end("j1", 20, error_json=error)
    assert await begin(downloads, job("j2"), key("k"), complete=True) == "j2"


async def test_a_job_ends_once(downloads: DownloadStore, store: Store) -> None:
    await begin(downloads, job(), key())
    assert await downloads.commit("j1", 20, *install())
    assert not await downloads.end("j1", 30, error_json=None)
    assert not await downloads.end("j1", 30, error_json="{}")
    assert not await downloads.commit("j1", 40, *install())
    row = await downloads.get("j1", expired_ms=NEVER)
    assert row is not None
    assert (row.state, row.terminal_at_ms, row.error_json) == ("committed", 20, None)
    assert not await downloads.commit("unknown", 40, *install(OTHER))
    assert [found.manifest_digest for found, _ in await InstallStore(store).all()] == [MANIFEST]


async def test_a_commit_writes_its_install_and_repairs_an_invalid_one(downloads: DownloadStore, store: Store) -> None:
    installs = InstallStore(store)
    await begin(downloads, job("j1"), key())
    await downloads.commit("j1", 20, *install())
    await installs.invalidate([("gte", MANIFEST)], "1" * 64)
    assert [row.valid for row, _ in await installs.all()] == [False]
    await begin(downloads, job("j2"), key())
    await downloads.commit("j2", 30, *install())
    ((row, members),) = await installs.all()
    assert row.valid
    assert {member.role: member.sha256 for member in members} == {"model": "1" * 64, "tokenizer": "2" * 64}


async def test_job_and_key_expire_together_and_open_ones_never(downloads: DownloadStore, store: Store) -> None:
    await begin(downloads, job("j1"), key("k"))
    await downloads.end("j1", 20, error_json=None)
    assert await downloads.get("j1", expired_ms=19) is not None
    assert await downloads.get("j1", expired_ms=20) is None
    await begin(downloads, job("j2", OTHER), key("k2", "e" * 64), expired=19)
    assert await keys(store) == ["k", "k2"]
    assert await begin(downloads, job("j3", OTHER), key("k3", "e" * 64), expired=20) == "j2"
    assert await keys(store) == ["k2", "k3"]
    assert await downloads.get("j2", expired_ms=10_000) is not None


async def keys(store: Store) -> list[str]:
    def read(session: Session) -> list[str]:
        rows = session.connection().exec_driver_sql("SELECT request_key FROM download_keys ORDER BY 1")
        return [name for (name,) in rows]

    return await store.run(read)


async def test_a_boot_fails_what_was_open_and_nothing_else(downloads: DownloadStore) -> None:
    await begin(downloads, job("j1"), key("k"))
    await begin(downloads, job("j2", OTHER), key("k2"))
    await downloads.commit("j1", 20, *install())
    failed = await downloads.fail_open(30, '{"code": "module_restarted"}')
    assert [row.job_id for row in failed] == ["j2"]
    assert await downloads.open_count() == 0
    row = await downloads.get("j2", expired_ms=NEVER)
    assert row is not None
    assert (row.state, row.terminal_at_ms) == ("failed", 30)


async def test_installs_go_all_together_unless_a_download_is_open(downloads: DownloadStore, store: Store) -> None:
    for number, manifest in enumerate((MANIFEST, OTHER)):
        await begin(downloads, job(f"j{number}", manifest), key(manifest, manifest))
        await downloads.commit(f"j{number}", 20, *install(manifest))
    await begin(downloads, job("open"), key("k"))
    with pytest.raises(ModelInUse) as refused:
        await downloads.remove_installs("gte")
    assert refused.value.details == {"catalog_id": "gte", "holders": [{"kind": "job", "job_id": "open"}]}
    await downloads.end("open", 30, error_json=None)
    assert await downloads.remove_installs("gte") == [MANIFEST, OTHER]
    assert await downloads.remove_installs("gte") == []
    assert await InstallStore(store).all() == []


@pytest.mark.parametrize(
    "change",
    [
        {"state": "queued"},
        {"state": "committed"},
        {"state": "failed", "terminal_at_ms": 1},
        {"state": "cancelled", "terminal_at_ms": 1, "error_json": "{}"},
        {"manifest_digest": "short"},
    ],
)
async def test_a_job_that_breaks_a_rule_is_refused_by_the_file(store: Store, change: dict[str, object]) -> None:
    row = DownloadRow(**{**job().model_dump(), **change})
    with pytest.raises(StoreFailure, match="constraint failed"):
        await store.run(lambda session: session.add(row))


async def test_a_host_keeps_its_name_and_two_have_different_ones(tmp_path: Path) -> None:
    names = []
    for file in ("a.db", "a.db", "b.db"):
        opened = Store.open(tmp_path / file)
        names.append(await ModuleStore(opened).host_id())
        opened.close()
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("host-")


@pytest.mark.parametrize(
    ("pages", "free_pages", "wasteful"),
    [(32_768, 16_384, True), (32_769, 16_384, False), (20_000, 16_383, False), (20_000, 16_384, True), (1, 0, False)],
)
def test_a_file_is_rewritten_when_64_mib_and_half_of_it_are_free(pages: int, free_pages: int, wasteful: bool) -> None:
    assert upkeep.is_wasteful(page_bytes=4096, pages=pages, free_pages=free_pages) is wasteful


def test_opening_a_wasteful_store_gives_its_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE junk (data BLOB)")
        connection.execute("INSERT INTO junk VALUES (zeroblob(4000000))")
        connection.execute("DROP TABLE junk")
    connection.close()
    monkeypatch.setattr(upkeep, "WASTED_BYTES", 1_000_000)
    Store.open(path).close()
    assert path.stat().st_size < 1_000_000


def test_a_whole_store_has_no_faults_beside_a_host_that_uses_it(store: Store) -> None:
    assert upkeep.faults_of(store.path) == []


async def test_a_store_says_what_is_installed_beside_a_host_that_uses_it(
    downloads: DownloadStore, store: Store, tmp_path: Path
) -> None:
    await begin(downloads, job(), key())
    await downloads.commit("j1", 20, *install())
    assert upkeep.installed_files(store.path) == [
        ("gte", "model.x", "1" * 64, 5),
        ("gte", "tokenizer.x", "2" * 64, 5),
    ]
    assert upkeep.installed_files(tmp_path / "absent.db") == []


def test_a_damaged_store_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store.open(path).close()
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 3] = b"\xff" * 8192
    path.write_bytes(data)
    assert upkeep.faults_of(path)
    with pytest.raises(FileNotFoundError):
        upkeep.faults_of(tmp_path / "absent.db")


def test_members_keep_their_rows_when_names_become_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "synapse.db"
    with monkeypatch.context() as patch:
        patch.setattr("synapse_host.store.database.migrate", lambda engine: migrate(engine, target=9))
        Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO installs VALUES ('tiny', ?, 1, 7)", ("a" * 64,))
        rows = [("tiny", "a" * 64, "model", "m.bin", "1" * 64, 5), ("tiny", "a" * 64, "config", "c.bin", "2" * 64, 6)]
        connection.executemany("INSERT INTO install_members VALUES (?, ?, ?, ?, ?, ?)", rows)
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        columns = "catalog_id, manifest_digest, role, name, sha256, size"
        assert connection.execute(f"SELECT {columns} FROM install_members ORDER BY name DESC").fetchall() == rows
        connection.execute("DELETE FROM installs")
        assert connection.execute("SELECT count(*) FROM install_members").fetchone() == (0,)
