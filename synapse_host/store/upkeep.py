"""Keeping the file small and seeing whether it is whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from synapse_host.errors import StoreFailure

#: Space worth rewriting the file for (original facts, section 5): so many free bytes, and at least half of its pages.
WASTED_BYTES = 64 * 1024 * 1024
#: Faults of one file that are listed.
_LISTED_FAULTS = 20


def is_wasteful(*, page_bytes: int, pages: int, free_pages: int) -> bool:
    """Whether the file holds enough free space to be rewritten without it."""
    return free_pages * page_bytes >= WASTED_BYTES and 2 * free_pages >= pages


def vacuum_if_wasteful(engine: Engine) -> bool:
    """Rewrite the file where it is wasteful; whether it was. Blocks, for as long as the file is large."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        page_bytes, pages, free_pages = (
            int(cursor.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        if not is_wasteful(page_bytes=page_bytes, pages=pages, free_pages=free_pages):
            return False
        cursor.execute("VACUUM")
        return True
    finally:
        connection.close()


class InstalledFile(NamedTuple):
    """A file that the store says is installed."""

    catalog_id: str
    name: str
    sha256: str
    size: int


def installed_files(path: Path) -> list[InstalledFile]:
    """What the store at ``path`` says is installed; empty where it cannot say. Opens the file for reading alone."""
    if not path.exists():
        return []
    try:
        with closing(_for_reading(path)) as connection:
            rows = connection.execute("SELECT catalog_id, name, sha256, size FROM install_members ORDER BY 1, 2")
            return [InstalledFile(*row) for row in rows]
    except sqlite3.Error:
        return []  # an older store, or a broken one, which ``faults_of`` tells


def host_id_of(path: Path) -> str | None:
    """The name of the host whose store is at ``path``; None where there is no store. Opens the file for reading alone.

    Raises:
        StoreFailure: it cannot be read.

    """
    if not path.exists():
        return None
    try:
        with closing(_for_reading(path)) as connection:
            return str(connection.execute("SELECT host_id FROM module_meta").fetchone()[0])
    except (sqlite3.Error, TypeError) as fault:
        raise StoreFailure(f"{path} does not say whose store it is: {fault}; run synapse-opctl doctor") from fault


def faults_of(path: Path) -> list[str]:
    """What is wrong with the store at ``path``, as SQLite says it; empty for a whole one.

    Opens the file for reading alone, beside a host that may be running on it.

    Raises:
        FileNotFoundError: there is no such file.

    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with closing(_for_reading(path)) as connection:
            rows = connection.execute(f"PRAGMA integrity_check({_LISTED_FAULTS})").fetchall()
            orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as fault:
        return [str(fault)]
    return [str(text) for (text,) in rows if text != "ok"] + [
        f"a row of {table} refers to a row of {parent} that is not there"
        for table, _, parent, _ in orphans[:_LISTED_FAULTS]
    ]


def _for_reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
