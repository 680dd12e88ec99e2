"""Each step of the schema, an old file brought up, and the rows held against the columns."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlmodel import Session, SQLModel

from synapse_host.errors import StoreFailure
from synapse_host.store import migrations
from synapse_host.store.alias_store import AliasRow
from synapse_host.store.database import Store
from synapse_host.store.download_tables import (
    DownloadKeyRow,
    DownloadRow,
    FileVerificationRow,
    InstallMemberRow,
    InstallRow,
)
from synapse_host.store.job_tables import JobInputRow, JobItemRow, JobPageRow, JobRow, JobWorkRow
from synapse_host.store.tables import CertificationRow, ModelRow, ModuleMetaRow, PerformanceRow, SelfCheckTableRow

#: Frozen here, column by column (name, type, not null, place in the key): released steps are never edited.
MODULE_META = [("id", "INTEGER", 0, 1), ("module_generation", "INTEGER", 1, 0), ("table_epoch", "INTEGER", 1, 0)]
MODELS = [
    ("model_id", "TEXT", 1, 1),
    ("engine", "TEXT", 1, 0),
    ("backend", "TEXT", 1, 0),
    ("task", "TEXT", 1, 0),
    ("model_path", "TEXT", 1, 0),
    ("model_sha256", "TEXT", 1, 0),
    ("model_size", "INTEGER", 1, 0),
    ("tokenizer_path", "TEXT", 1, 0),
    ("tokenizer_sha256", "TEXT", 1, 0),
    ("config_path", "TEXT", 1, 0),
    ("config_sha256", "TEXT", 1, 0),
    ("pooling", "TEXT", 1, 0),
    ("normalize", "INTEGER", 1, 0),
    ("max_tokens", "INTEGER", 1, 0),
    ("dtype", "TEXT", 1, 0),
    ("quant", "TEXT", 1, 0),
    ("format", "TEXT", 1, 0),
    ("device_class", "TEXT", 1, 0),
    ("vocab_size", "INTEGER", 1, 0),
    ("batch_rows", "INTEGER", 1, 0),
    ("batch_token_budget", "INTEGER", 1, 0),
    ("manifest_digest", "TEXT", 0, 0),
    ("family", "TEXT", 1, 0),
    ("fingerprint", "TEXT", 1, 0),
    ("numeric_profile_json", "TEXT", 1, 0),
    ("created_ms", "INTEGER", 1, 0),
]
CERTIFICATIONS = [
    ("machine_profile_hash", "TEXT", 1, 1),
    ("fingerprint", "TEXT", 1, 2),
    ("model_id", "TEXT", 1, 0),
    ("status", "TEXT", 1, 0),
    ("reason", "TEXT", 0, 0),
    ("assurance", "TEXT", 1, 0),
    ("os_build", "TEXT", 1, 0),
    ("module_generation", "INTEGER", 1, 0),
    ("kernel_revision", "TEXT", 0, 0),
    ("manifest_digest", "TEXT", 0, 0),
    ("measured_at_ms", "INTEGER", 1, 0),
    ("evidence_json", "TEXT", 1, 0),
]
PERFORMANCE = [
    ("machine_profile_hash", "TEXT", 1, 1),
    ("fingerprint", "TEXT", 1, 2),
    ("model_id", "TEXT", 1, 0),
    ("throughput_tok_s", "REAL", 1, 0),
    ("cold_load_ms", "INTEGER", 1, 0),
    ("single_item_latency_p50_ms", "REAL", 1, 0),
    ("measured_at_ms", "INTEGER", 1, 0),
    ("module_generation", "INTEGER", 1, 0),
]
SHARDED_MODELS = [*MODELS, ("shards_json", "TEXT", 1, 0)]
SELF_CHECKS = [
    ("check_id", "TEXT", 1, 1),
    ("catalog_id", "TEXT", 1, 0),
    ("backend", "TEXT", 1, 0),
    ("state", "TEXT", 1, 0),
    ("reason", "TEXT", 0, 0),
    ("key_json", "TEXT", 1, 0),
    ("figures_json", "TEXT", 1, 0),
    ("checked_at_ms", "INTEGER", 1, 0),
]
NAMED_MODULE_META = [*MODULE_META, ("host_id", "TEXT", 1, 0)]
INSTALLS_AND_DOWNLOADS = {
    "installs": [
        ("catalog_id", "TEXT", 1, 1),
        ("manifest_digest", "TEXT", 1, 2),
        ("valid", "INTEGER", 1, 0),
        ("installed_ms", "INTEGER", 1, 0),
    ],
    "install_members": [
        ("catalog_id", "TEXT", 1, 1),
        ("manifest_digest", "TEXT", 1, 2),
        ("role", "TEXT", 1, 3),
        ("name", "TEXT", 1, 0),
        ("sha256", "TEXT", 1, 0),
        ("size", "INTEGER", 1, 0),
    ],
    "file_verifications": [
        ("sha256", "TEXT", 1, 1),
        ("device", "INTEGER", 1, 0),
        ("inode", "INTEGER", 1, 0),
        ("size", "INTEGER", 1, 0),
        ("mtime_ns", "INTEGER", 1, 0),
        ("ctime_ns", "INTEGER", 1, 0),
        ("verified_ms", "INTEGER", 1, 0),
    ],
    "downloads": [
        ("job_id", "TEXT", 1, 1),
        ("catalog_id", "TEXT", 1, 0),
        ("manifest_digest", "TEXT", 1, 0),
        ("module_generation", "INTEGER", 1, 0),
        ("state", "TEXT", 1, 0),
        ("created_ms", "INTEGER", 1, 0),
        ("terminal_at_ms", "INTEGER", 0, 0),
        ("error_json", "TEXT", 0, 0),
    ],
    "download_keys": [
        ("request_key", "TEXT", 1, 1),
        ("request_digest", "TEXT", 1, 0),
        ("job_id", "TEXT", 1, 0),
    ],
}
ALIASES = [
    ("alias_pk", "INTEGER", 0, 1),
    ("fingerprint_a", "TEXT", 1, 0),
    ("fingerprint_b", "TEXT", 1, 0),
    ("valid_from_ms", "INTEGER", 1, 0),
    ("valid_to_ms", "INTEGER", 0, 0),
    ("evidence_json", "TEXT", 1, 0),
    ("retraction_json", "TEXT", 1, 0),
]
JOB_WORKS = [
    ("work_pk", "INTEGER", 0, 1),
    ("request_key", "TEXT", 1, 0),
    ("request_digest", "TEXT", 1, 0),
    ("fingerprint", "TEXT", 1, 0),
    ("item_count", "INTEGER", 1, 0),
    ("dims", "INTEGER", 0, 0),
    ("page_count", "INTEGER", 1, 0),
    ("items_done", "INTEGER", 1, 0),
]
JOBS = [
    ("job_pk", "INTEGER", 0, 1),
    ("job_id", "TEXT", 1, 0),
    ("work_pk", "INTEGER", 1, 0),
    ("kind", "TEXT", 1, 0),
    ("request_key", "TEXT", 1, 0),
    ("request_digest", "TEXT", 1, 0),
    ("module_generation", "INTEGER", 1, 0),
    ("state", "TEXT", 1, 0),
    ("model_id", "TEXT", 1, 0),
    ("fingerprint", "TEXT", 1, 0),
    ("identity_json", "TEXT", 1, 0),
    ("item_count", "INTEGER", 1, 0),
    ("page_count", "INTEGER", 1, 0),
    ("items_done", "INTEGER", 1, 0),
    ("created_ms", "INTEGER", 1, 0),
    ("updated_ms", "INTEGER", 1, 0),
    ("execution_expires_ms", "INTEGER", 1, 0),
    ("result_retention_ms", "INTEGER", 1, 0),
    ("terminal_at_ms", "INTEGER", 0, 0),
    ("paused_at_ms", "INTEGER", 0, 0),
    ("resume_deadline_ms", "INTEGER", 0, 0),
    ("logical_handle", "TEXT", 0, 0),
    ("error_json", "TEXT", 0, 0),
]
JOB_INPUTS = [("job_pk", "INTEGER", 1, 1), ("chunk_no", "INTEGER", 1, 2), ("items_json", "BLOB", 1, 0)]
JOB_PAGES = [
    ("work_pk", "INTEGER", 1, 1),
    ("page_no", "INTEGER", 1, 2),
    ("rows", "INTEGER", 1, 0),
    ("vectors", "BLOB", 1, 0),
    ("columns_json", "BLOB", 1, 0),
    ("committed_ms", "INTEGER", 1, 0),
]
JOB_ITEMS = [("work_pk", "INTEGER", 1, 1), ("ordinal", "INTEGER", 1, 2), ("page_no", "INTEGER", 1, 0)]
#: The whole schema after each step.
SCHEMAS = {
    1: {"module_meta": MODULE_META, "models": MODELS},
    2: {
        "module_meta": MODULE_META,
        "models": MODELS,
        "certifications": CERTIFICATIONS,
        "performance": PERFORMANCE,
    },
    3: {
        "module_meta": MODULE_META,
        "models": SHARDED_MODELS,
        "certifications": CERTIFICATIONS,
        "performance": PERFORMANCE,
    },
    4: {
        "module_meta": MODULE_META,
        "models": SHARDED_MODELS,
        "certifications": CERTIFICATIONS,
        "performance": PERFORMANCE,
        "self_checks": SELF_CHECKS,
    },
    5: {
        "module_meta": NAMED_MODULE_META,
        "models": SHARDED_MODELS,
        "certifications": CERTIFICATIONS,
        "performance": PERFORMANCE,
        "self_checks": SELF_CHECKS,
        **INSTALLS_AND_DOWNLOADS,
    },
}
SCHEMAS[6] = SCHEMAS[5] | {
    "job_works": JOB_WORKS,
    "jobs": JOBS,
    "job_inputs": JOB_INPUTS,
    "job_pages": JOB_PAGES,
    "job_items": JOB_ITEMS,
}
SCHEMAS[7] = SCHEMAS[6] | {"alias_rows": ALIASES}
SCHEMAS[8] = SCHEMAS[7]
SCHEMAS[9] = SCHEMAS[8] | {"models": [*SHARDED_MODELS, ("profile", "TEXT", 0, 0)]}
SCHEMAS[10] = SCHEMAS[9] | {
    "install_members": [
        ("catalog_id", "TEXT", 1, 1),
        ("manifest_digest", "TEXT", 1, 2),
        ("name", "TEXT", 1, 3),
        ("role", "TEXT", 1, 0),
        ("sha256", "TEXT", 1, 0),
        ("size", "INTEGER", 1, 0),
    ]
}
#: Every row class of the store.
ROWS = [
    ModuleMetaRow,
    ModelRow,
    CertificationRow,
    PerformanceRow,
    SelfCheckTableRow,
    InstallRow,
    InstallMemberRow,
    FileVerificationRow,
    DownloadRow,
    DownloadKeyRow,
    AliasRow,
    JobWorkRow,
    JobRow,
    JobInputRow,
    JobPageRow,
    JobItemRow,
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "synapse.db"


def store_of_version(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store as the release that knew ``version`` steps would have made it."""
    with monkeypatch.context() as patch:
        patch.setattr("synapse_host.store.database.migrate", lambda engine: migrations.migrate(engine, target=version))
        return Store.open(path)


def schema(path: Path) -> dict[str, list[tuple[str, str, int, int]]]:
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        table: [(name, kind, notnull, key) for _, name, kind, notnull, _, key in _columns(connection, table)]
        for table in tables
    }
    connection.close()
    return found


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[int, str, str, int, object, int]]:
    return connection.execute(f"PRAGMA table_info({table})").fetchall()


def test_every_step_has_a_frozen_schema() -> None:
    assert sorted(SCHEMAS) == list(range(1, migrations.LATEST_VERSION + 1))


@pytest.mark.parametrize("version", sorted(SCHEMAS))
def test_a_step_leaves_exactly_its_columns_and_number(
    path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of_version(path, version, monkeypatch)
    number = store.transact(lambda session: migrations.stored_version(session.connection()))
    store.close()
    assert number == version
    assert schema(path) == SCHEMAS[version]


def test_a_version_1_file_is_brought_up_with_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = store_of_version(path, 1, monkeypatch)
    old.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE module_meta SET module_generation = 41")
    values = ("minilm", "owned-cpu", "cpu", "embed", "/m", "1" * 64, 9, "/t", "2" * 64, "/c", "3" * 64)
    values += (
        "mean",
        1,
        512,
        "f32",
        "none",
        "safetensors-package",
        "cpu",
        99,
        64,
        3072,
        None,
        "bert",
        "f" * 64,
        "{}",
        7,
    )
    connection.execute(f"INSERT INTO models VALUES ({','.join('?' * len(values))})", values)
    connection.commit()
    connection.close()

    store = Store.open(path)
    model = store.transact(lambda session: session.get(ModelRow, "minilm"))
    generation = store.transact(lambda session: session.get_one(ModuleMetaRow, 1).module_generation)
    store.close()
    assert model is not None
    assert (model.engine, model.normalize, model.max_tokens, model.created_ms) == ("owned-cpu", True, 512, 7)
    assert generation == 41
    assert schema(path) == SCHEMAS[migrations.LATEST_VERSION]


def test_opening_twice_changes_nothing(path: Path) -> None:
    Store.open(path).close()
    before = schema(path)
    Store.open(path).close()
    assert schema(path) == before


def test_a_step_that_fails_leaves_the_version_before_it_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_of_version(path, 1, monkeypatch).close()
    with monkeypatch.context() as patch:
        first, second, *_ = migrations.MIGRATIONS
        patch.setattr(migrations, "MIGRATIONS", (first, lambda connection: (second(connection), 1 / 0)))
        with pytest.raises(ZeroDivisionError):
            Store.open(path)
    assert schema(path) == SCHEMAS[1]
    Store.open(path).close()
    assert schema(path) == SCHEMAS[migrations.LATEST_VERSION]


def test_a_foreign_database_is_refused_and_kept(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE models (recipe TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreFailure, match="table models already exists"):
        Store.open(path)
    assert schema(path) == {"models": [("recipe", "TEXT", 0, 0)]}


@pytest.mark.parametrize("row", ROWS)
def test_rows_and_columns_agree(row: type[SQLModel]) -> None:
    table = SQLModel.metadata.tables[str(row.__tablename__)]
    frozen = SCHEMAS[migrations.LATEST_VERSION][table.name]
    assert [column.name for column in table.columns] == [name for name, _, _, _ in frozen]
    assert {c.name for c in table.columns if c.primary_key} == {name for name, _, _, key in frozen if key}
    assert {c.name for c in table.columns if c.nullable} == {
        n for n, _, needed, key in frozen if not needed and not key
    }


def test_no_table_is_without_a_migration() -> None:
    assert set(SQLModel.metadata.tables) <= set(SCHEMAS[migrations.LATEST_VERSION])


def test_the_fingerprint_of_a_model_is_indexed(path: Path) -> None:
    store = Store.open(path)

    def plan(session: Session) -> str:
        rows = session.connection().exec_driver_sql("EXPLAIN QUERY PLAN SELECT * FROM models WHERE fingerprint = 'x'")
        return str(rows.all())

    text = store.transact(plan)
    store.close()
    assert "ix_models_fingerprint" in text
