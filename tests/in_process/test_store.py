"""The real SQLite file: what survives, what is refused, what a full disk does."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlmodel import Session

from synapse_host.errors import InvalidRequest, StoreFailure
from synapse_host.store.certification_store import CertificationStore
from synapse_host.store.database import Store
from synapse_host.store.migrations import LATEST_VERSION
from synapse_host.store.model_store import ModelStore
from synapse_host.store.module_store import ModuleStore
from synapse_host.store.tables import CertificationRow, ModelRow, ModuleMetaRow, PerformanceRow

pytestmark = pytest.mark.anyio

MACHINE = "a" * 64
FINGERPRINT = "f" * 64


def model_row(model_id: str = "minilm", **changes: Any) -> ModelRow:
    fields: dict[str, Any] = {
        "model_id": model_id,
        "engine": "owned-cpu",
        "backend": "cpu",
        "task": "embed",
        "model_path": "/models/model.safetensors",
        "model_sha256": "1" * 64,
        "model_size": 90_868_376,
        "tokenizer_path": "/models/tokenizer.json",
        "tokenizer_sha256": "2" * 64,
        "config_path": "/models/config.json",
        "config_sha256": "3" * 64,
        "pooling": "mean",
        "normalize": True,
        "max_tokens": 512,
        "dtype": "bf16",
        "quant": "none",
        "format": "safetensors-package",
        "device_class": "cpu",
        "vocab_size": 30522,
        "batch_rows": 64,
        "batch_token_budget": 3072,
        "manifest_digest": None,
        "family": "bert",
        "fingerprint": FINGERPRINT,
        "numeric_profile_json": '{"text":"ünïcode"}',
        "created_ms": 1_700_000_000_000,
    }
    return ModelRow(**(fields | changes))


def certification_row(fingerprint: str = FINGERPRINT, **changes: Any) -> CertificationRow:
    fields: dict[str, Any] = {
        "machine_profile_hash": MACHINE,
        "fingerprint": fingerprint,
        "model_id": "minilm",
        "status": "certified",
        "os_build": "Linux 6",
        "module_generation": 3,
        "measured_at_ms": 5,
        "evidence_json": '{"mean_cosine":0.99999}',
    }
    return CertificationRow(**(fields | changes))


def performance_row(fingerprint: str = FINGERPRINT, **changes: Any) -> PerformanceRow:
    fields: dict[str, Any] = {
        "machine_profile_hash": MACHINE,
        "fingerprint": fingerprint,
        "model_id": "minilm",
        "throughput_tok_s": 28_000.5,
        "cold_load_ms": 900,
        "single_item_latency_p50_ms": 1.25,
        "measured_at_ms": 5,
        "module_generation": 3,
    }
    return PerformanceRow(**(fields | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "synapse.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store.open(path)
    yield opened
    opened.close()


async def test_everything_survives_a_restart(path: Path) -> None:
    first = Store.open(path)
    await ModelStore(first).save(model_row())
    await CertificationStore(first).save(certification_row(reason="note"), performance_row())
    assert await ModuleStore(first).begin_generation() == 1
    first.close()

    second = Store.open(path)
    model = await ModelStore(second).get("minilm")
    certification = await CertificationStore(second).get(MACHINE, FINGERPRINT)
    performance = await CertificationStore(second).performance(MACHINE, FINGERPRINT)
    generation = await ModuleStore(second).begin_generation()
    second.close()

    assert model is not None
    assert certification is not None
    assert performance is not None
    assert model.model_dump() == model_row().model_dump()
    assert model.normalize is True
    assert certification.model_dump() == certification_row(reason="note").model_dump()
    assert performance.model_dump() == performance_row().model_dump()
    assert generation == 2


async def test_generation_counts_boots_and_the_epoch_starts_at_zero(store: Store) -> None:
    module = ModuleStore(store)
    assert await module.module_generation() == 0
    assert [await module.begin_generation() for _ in range(3)] == [1, 2, 3]
    assert await module.module_generation() == 3
    assert await module.table_epoch() == 0


async def test_models_are_saved_replaced_listed_and_deleted(store: Store) -> None:
    models = ModelStore(store)
    await models.save(model_row("b"))
    await models.save(model_row("a"))
    await models.save(model_row("b", max_tokens=128, normalize=False))
    assert [(row.model_id, row.max_tokens, row.normalize) for row in await models.all()] == [
        ("a", 512, True),
        ("b", 128, False),
    ]
    assert await models.get("absent") is None
    assert await models.delete("a") is True
    assert await models.delete("a") is False
    assert [row.model_id for row in await models.all()] == ["b"]


async def test_deleting_a_model_keeps_the_certification_of_its_fingerprint(store: Store) -> None:
    await ModelStore(store).save(model_row())
    await CertificationStore(store).save(certification_row(), performance_row())
    await ModelStore(store).delete("minilm")
    assert await CertificationStore(store).get(MACHINE, FINGERPRINT) is not None


async def test_certifications_are_kept_by_machine_and_fingerprint(store: Store) -> None:
    certifications = CertificationStore(store)
    other = "e" * 64
    await certifications.save(certification_row(other, model_id="z"), performance_row(other, model_id="z"))
    await certifications.save(certification_row(), performance_row())
    await certifications.save(certification_row(machine_profile_hash="b" * 64), None)
    assert [row.fingerprint for row in await certifications.all(MACHINE)] == [FINGERPRINT, other]
    assert [row.fingerprint for row in await certifications.all_performance(MACHINE)] == [FINGERPRINT, other]
    assert len(await certifications.all("b" * 64)) == 1
    assert await certifications.all_performance("b" * 64) == []
    assert await certifications.get("c" * 64, FINGERPRINT) is None


async def test_what_was_measured_on_another_machine_alone_is_known_as_such(store: Store) -> None:
    certifications = CertificationStore(store)
    assert not await certifications.measured_elsewhere(MACHINE, FINGERPRINT)
    await certifications.save(certification_row(), None)
    assert not await certifications.measured_elsewhere(MACHINE, FINGERPRINT)
    assert await certifications.measured_elsewhere("b" * 64, FINGERPRINT)
    assert not await certifications.measured_elsewhere("b" * 64, "e" * 64)


async def test_a_failed_probe_takes_the_performance_of_the_one_before_away(store: Store) -> None:
    certifications = CertificationStore(store)
    await certifications.save(certification_row(), performance_row())
    await certifications.save(certification_row(status="uncertified", reason="mean cosine 0.91 < 0.999"), None)
    row = await certifications.get(MACHINE, FINGERPRINT)
    assert row is not None
    assert (row.status, row.reason) == ("uncertified", "mean cosine 0.91 < 0.999")
    assert await certifications.performance(MACHINE, FINGERPRINT) is None


async def test_rows_of_two_lanes_are_not_saved_as_one_probe(store: Store) -> None:
    with pytest.raises(ValueError, match="does not belong"):
        await CertificationStore(store).save(certification_row(), performance_row("e" * 64))
    assert await CertificationStore(store).all(MACHINE) == []


@pytest.mark.parametrize(
    "row",
    [
        model_row(""),
        model_row(model_sha256="short"),
        model_row(max_tokens=0),
        model_row(family=None),
        certification_row(status="maybe"),
        certification_row(status="uncertified", reason=None),
        performance_row(),
    ],
    ids=["blank id", "short digest", "no tokens", "missing column", "unknown status", "no reason", "no certification"],
)
async def test_a_row_that_breaks_a_rule_is_refused_by_the_file(store: Store, row: Any) -> None:
    with pytest.raises(StoreFailure, match="constraint failed"):
        await store.run(lambda session: session.add(row))
    assert await ModelStore(store).all() == []


async def test_work_that_raises_is_undone_and_its_error_passes_through(store: Store) -> None:
    def work(session: Session) -> None:
        session.add(model_row())
        session.flush()
        raise InvalidRequest("the work refuses")

    with pytest.raises(InvalidRequest, match="the work refuses"):
        await store.run(work)
    assert await ModelStore(store).all() == []


async def test_concurrent_writers_take_turns_and_lose_nothing(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(ModuleStore(store).begin_generation)
    assert await ModuleStore(store).module_generation() == 40


async def test_a_cancelled_caller_leaves_a_whole_transaction(store: Store) -> None:
    with anyio.CancelScope() as scope:

        def work(session: Session) -> None:
            session.add(model_row("one"))
            anyio.from_thread.run_sync(scope.cancel)
            session.flush()
            session.add(model_row("two"))

        await store.run(work)
    assert [row.model_id for row in await ModelStore(store).all()] == ["one", "two"]


async def test_the_file_uses_wal_foreign_keys_and_full_sync(store: Store, path: Path) -> None:
    def pragmas(session: Session) -> tuple[Any, ...]:
        connection = session.connection()
        names = ("journal_mode", "foreign_keys", "synchronous", "user_version")
        return tuple(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)

    assert await store.run(pragmas) == ("wal", 1, 2, LATEST_VERSION)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_closed_store_refuses_with_what_to_do(path: Path) -> None:
    store = Store.open(path)
    store.close()
    store.close()
    with pytest.raises(StoreFailure, match="closed: the host is stopping"):
        await ModuleStore(store).begin_generation()


def test_a_store_of_a_newer_version_is_refused_unchanged_and_names_both(path: Path) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFailure, match=f"version 99, newer than version {LATEST_VERSION}"):
        Store.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all" * 50, b"SQLite format 3\x00" + b"\xff" * 4080])
def test_a_file_that_is_no_store_is_refused_by_name_and_kept(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreFailure, match=r"synapse\.db could not be opened: .*(move the file away|repair)"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_hold_a_file_is_a_store_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailure, match="could not be opened"):
        Store.open(tmp_path / "file" / "synapse.db")
    with pytest.raises(StoreFailure, match="could not be opened"):
        Store.open(tmp_path)


def test_odd_characters_in_the_path_name_the_very_file(tmp_path: Path) -> None:
    path = tmp_path / "what?mode=ro#100%25 ü" / "s.db"
    Store.open(path).close()
    assert path.stat().st_size > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a 1 MB tmpfs needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"this root may not mount a tmpfs: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


async def test_a_full_disk_is_a_store_failure_and_harms_nothing(small_disk: Path) -> None:
    store = Store.open(small_disk / "synapse.db")
    models = ModelStore(store)
    await models.save(model_row("kept"))
    (small_disk / "filler").write_bytes(b"x" * _free_bytes(small_disk))

    for _ in range(2):
        with pytest.raises(StoreFailure, match=r"synapse\.db could not be .*free (disk space|space)"):
            await models.save(model_row("lost", numeric_profile_json="y" * 300_000))
        assert [row.model_id for row in await models.all()] == ["kept"]

    (small_disk / "filler").unlink()
    await models.save(model_row("after"))
    store.close()
    again = Store.open(small_disk / "synapse.db")
    assert [row.model_id for row in await ModelStore(again).all()] == ["after", "kept"]
    assert await again.run(_integrity) == "ok"
    again.close()


async def test_a_disk_too_full_for_a_new_store_is_a_store_failure(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * _free_bytes(small_disk))
    with pytest.raises(StoreFailure, match="free"):
        Store.open(small_disk / "synapse.db")
    (small_disk / "filler").unlink()
    store = Store.open(small_disk / "synapse.db")
    assert await ModuleStore(store).begin_generation() == 1
    store.close()


def _free_bytes(mount: Path) -> int:
    facts = os.statvfs(mount)
    return facts.f_bavail * facts.f_frsize


def _integrity(session: Session) -> str:
    return str(session.connection().exec_driver_sql("PRAGMA integrity_check").scalar_one())


async def test_the_counters_are_one_row_only(store: Store) -> None:
    with pytest.raises(StoreFailure, match="constraint failed"):
        await store.run(lambda session: session.add(ModuleMetaRow(id=2)))


@pytest.mark.parametrize("spoil", ["removed", "moved", "replaced"])
async def test_a_file_that_lost_its_name_is_not_written_any_more(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "synapse.db"
    store = Store.open(path)
    models = ModelStore(store)
    await models.save(model_row("before"))
    if spoil == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "elsewhere")
    if spoil == "replaced":
        path.touch()
    for work in (models.save(model_row("after")), models.all()):
        with pytest.raises(
            StoreFailure, match="replaced by another" if spoil == "replaced" else "is not there any more"
        ):
            await work
    if spoil == "moved":
        (tmp_path / "elsewhere").rename(path)
        assert [row.model_id for row in await models.all()] == ["before"]
        await models.save(model_row("after"))
    else:
        assert path.exists() == (spoil == "replaced")  # and none was made by looking
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_journal_that_lost_its_name_is_noticed_and_closing_saves_it(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "synapse.db"
    store = Store.open(path)
    models = ModelStore(store)
    await models.save(model_row("before"))
    journal = tmp_path / "synapse.db-wal"
    journal.rename(tmp_path / "gone")
    if replaced:
        journal.touch()
    with pytest.raises(StoreFailure, match="stop the host, which saves what is in it"):
        await models.save(model_row("after"))
    store.close()
    journal.unlink(missing_ok=True)
    again = Store.open(path)
    assert [row.model_id for row in await ModelStore(again).all()] == ["before"]
    again.close()
