"""The table of jobs is made again so that a job may be cancelled; what an older program wrote is kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from synapse_host.store import migrations
from synapse_host.store.database import Store


def test_jobs_of_a_version_7_file_are_kept_and_may_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "synapse.db"
    with monkeypatch.context() as patch:
        patch.setattr("synapse_host.store.database.migrate", lambda engine: migrations.migrate(engine, target=7))
        Store.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO job_works VALUES (1, 'k', ?, 'f', 2, 1, 1, 1)", ("0" * 64,))
    identity = (1, "embed-1-1", 1, "embed.batch", "k", "0" * 64, 1)
    row = (*identity, "running", "m", "f", "{}", 2, 1, 1, 5, 6, 7, 8, None, None, None, None, None)
    connection.execute(f"INSERT INTO jobs VALUES ({','.join('?' * len(row))})", row)
    connection.execute("INSERT INTO job_inputs VALUES (1, 0, x'5b5d')")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE jobs SET state = 'cancelled', terminal_at_ms = 9")
    connection.commit()
    indexes = _indexes(connection)
    connection.close()

    Store.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    assert connection.execute("SELECT * FROM jobs").fetchall() == [row]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert _indexes(connection) == indexes
    connection.execute("UPDATE jobs SET state = 'cancelled', terminal_at_ms = 9")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        connection.execute("DELETE FROM jobs")
    connection.close()


def _indexes(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'jobs' ORDER BY name"
    ).fetchall()
