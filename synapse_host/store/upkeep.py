"""Keeping the file small and seeing whether it is whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Engine

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


def faults_of(path: Path) -> list[str]:
    """What is wrong with the store at ``path``, as SQLite says it; empty for a whole one.

    Opens the file for reading alone, beside a host that may be running on it.

    Raises:
        FileNotFoundError: there is no such file.

    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            rows = connection.execute(f"PRAGMA integrity_check({_LISTED_FAULTS})").fetchall()
            orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as fault:
        return [str(fault)]
    return [str(text) for (text,) in rows if text != "ok"] + [
        f"a row of {table} refers to a row of {parent} that is not there"
        for table, _, parent, _ in orphans[:_LISTED_FAULTS]
    ]
