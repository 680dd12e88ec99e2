"""The store's one file: opened, migrated, and written one transaction at a time.

SQLite in WAL mode with foreign keys. Work runs in a worker thread, one piece at a time, over one connection: SQLite has
one writer anyway, and queueing here is fair while its own busy waiting is not. A transaction is whole or absent
whatever happens to the process, and is on the disk when ``run`` returns. Beside it a few connections only read, and
wait for no writer.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import URL, Connection, Engine, QueuePool, StaticPool, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlmodel import Session, create_engine

from synapse_host.errors import StoreFailure
from synapse_host.store.migrations import migrate
from synapse_host.store.upkeep import vacuum_if_wasteful

_log = logging.getLogger(__name__)
#: Bytes that the journal keeps when it begins anew: what SQLite lets it grow to between two checkpoints.
JOURNAL_BYTES = 4 * 1024 * 1024
#: Seconds to wait for another process that holds the file's lock, such as a backup being taken.
BUSY_TIMEOUT_S = 5.0
#: Threads, each with its connection, that may read at once.
READERS = 2
T = TypeVar("T")

#: What SQLite says, in part, and what a person can do about it.
_REMEDIES = (
    ("is full", "free disk space there, then retry"),
    ("disk I/O error", "check the disk and its free space, then retry"),
    ("locked", "stop the other program that has the file open, then retry"),
    ("not a database", "move the file away, or restore it from a backup"),
    ("malformed", "move the file away, or restore it from a backup"),
    ("readonly", "give the host's user the right to write there"),
    ("unable to open", "give the host's user the right to write there"),
)
_OTHER_REMEDY = "repair the data directory, then retry"


class Store:
    """The open store. ``run`` is for the event loop; ``transact`` is the same work in the calling thread."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine
        self._readers = _reading_engine(path)
        self._one_writer = anyio.CapacityLimiter(1)
        self._some_readers = anyio.CapacityLimiter(READERS)
        self._closed = False
        self._file = _identity(path)
        self._journal_path = path.with_name(f"{path.name}-wal")
        #: Once it was seen. SQLite keeps it as long as a connection is open.
        self._journal: tuple[int, int] | None = None
        #: What the store could not be written for, until something was written again.
        self.fault: StoreFailure | None = None

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the file, making it (readable by its owner alone) and migrating it as needed. Blocks.

        Raises:
            StoreFailure: it cannot be opened, is no store, or is of a newer version; an existing file is unchanged.

        """
        engine = _engine(path)
        try:
            _make_private(path)
            migrate(engine)
            vacuum_if_wasteful(engine)
        except StoreFailure as error:
            engine.dispose()
            raise StoreFailure(f"{path}: {error.message}") from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            engine.dispose()
            raise _failure(path, "opened", error) from error
        return cls(path, engine)

    async def run(self, work: Callable[[Session], T], *, large: bool = False) -> T:
        """Carry out ``work`` in one transaction: committed when it returns, undone when it raises.

        A cancelled caller still waits for the transaction it started, so that its outcome is never in doubt. ``large``
        work that a full disk undoes gives back all the room it took meanwhile.

        Raises:
            StoreFailure: the store could not be read or written, or is closed. What ``work`` raises passes through.

        """
        return await anyio.to_thread.run_sync(self.transact, work, large, limiter=self._one_writer)

    async def read(self, work: Callable[[Session], T]) -> T:
        """Carry out ``work``, which writes nothing, on one snapshot of the store, waiting for no writer.

        Raises:
            StoreFailure: the store could not be read, or is closed. What ``work`` raises passes through.

        """
        return await anyio.to_thread.run_sync(self.look, work, limiter=self._some_readers)

    def transact(self, work: Callable[[Session], T], large: bool = False) -> T:
        """What ``run`` does, in the calling thread; never from two threads at once."""
        # Only what has written something says that the fault is gone.
        written = None if self.fault is None else _changes(self._engine)
        try:
            if large:
                self._empty_journal()
            done = self._carry_out(self._engine, "read or written", work)
        except StoreFailure as failure:
            self._failed(failure)
            raise
        if written is not None and _changes(self._engine) != written:
            self._recovered()
        return done

    def look(self, work: Callable[[Session], T]) -> T:
        """What ``read`` does, in the calling thread."""
        return self._carry_out(self._readers, "read", work)

    async def try_again(self) -> None:
        """Where it could not be written, see whether it can now.

        Raises:
            StoreFailure: it still cannot.

        """
        if self.fault is not None:
            await self.run(_rewrite_a_number)
            self._recovered()

    async def vacuum(self) -> bool:
        """Give the disk back what deleted rows took, where that is much; whether it did. Every write waits for it.

        Raises:
            StoreFailure: the file could not be rewritten, for want of space for instance; it is unchanged then.

        """
        return await anyio.to_thread.run_sync(self._vacuum, limiter=self._one_writer)

    def close(self) -> None:
        """Close the file; call it when no ``run`` or ``read`` is under way. Closing twice is harmless."""
        self._closed = True
        self._readers.dispose()
        self._engine.dispose()

    def _carry_out(self, engine: Engine, intent: str, work: Callable[[Session], T]) -> T:
        self._refuse_closed()
        self._refuse_other_file()
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise _failure(self.path, intent, error) from error

    def _failed(self, failure: StoreFailure) -> None:
        if self._closed:
            return
        if self.fault is None:
            _log.error("%s", failure.message)
        self.fault = failure
        # What was undone is in the journal still, on a disk that may be full of it.
        with suppress(SQLAlchemyError, sqlite3.Error):
            self._checkpoint("TRUNCATE")

    def _empty_journal(self) -> None:
        """Bring what was committed from the journal into the file: a journal that is needed cannot be cut."""
        self._refuse_closed()
        try:
            self._checkpoint("PASSIVE")
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise _failure(self.path, "written", error) from error

    def _checkpoint(self, mode: str) -> None:
        with closing(self._engine.raw_connection()) as connection:
            connection.cursor().execute(f"PRAGMA wal_checkpoint({mode})")

    def _recovered(self) -> None:
        if self.fault is not None:
            self.fault = None
            _log.info("%s can be written again", self.path)

    def _vacuum(self) -> bool:
        self._refuse_closed()
        try:
            return vacuum_if_wasteful(self._engine)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise _failure(self.path, "rewritten without its free pages", error) from error

    def _refuse_other_file(self) -> None:
        """SQLite goes on with a file that has lost its name, and all it would write is gone with the process."""
        try:
            same = _identity(self.path) == self._file
        except OSError as gone:
            raise StoreFailure(
                f"{self.path} is not there any more ({gone.strerror}); put it back or restore a backup, then restart "
                "the host"
            ) from gone
        if not same:
            raise StoreFailure(
                f"{self.path} was replaced by another file while the host runs on the one before; restart the host"
            )
        self._refuse_other_journal()

    def _refuse_other_journal(self) -> None:
        """What was committed since is in a journal without a name: closing saves it, a crash does not."""
        try:
            found = _identity(self._journal_path)
        except OSError:
            found = None
        if self._journal is None:
            self._journal = found
        elif found != self._journal:
            raise StoreFailure(
                f"{self._journal_path} was removed or replaced while the host runs; stop the host, which saves what is "
                "in it, and start it again"
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreFailure(f"{self.path} is closed: the host is stopping; send the request to a running host")


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=StaticPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S},
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _reading_engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=READERS,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S},
    )
    event.listen(engine, "connect", _on_reader_connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def _on_reader_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _on_connect(connection: Any, _record: Any) -> None:
    # The driver must not start transactions by itself: it leaves schema changes outside them.
    connection.isolation_level = None
    try:
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"journal_size_limit = {JOURNAL_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        # The pool does not own the connection yet and would leave it open.
        connection.close()
        raise


def _on_begin(connection: Connection) -> None:
    # IMMEDIATE, because a reader that turns writer can be refused without a wait.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _changes(engine: Engine) -> int:
    """Rows that the writing connection has changed since it was opened."""
    with closing(engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        return int(driver.total_changes)


def _rewrite_a_number(session: Session) -> None:
    connection = session.connection()
    same = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA user_version = {same:d}")


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def _make_private(path: Path) -> None:
    """Make the file before SQLite does, which would let the umask decide who may read it and its journal."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _failure(path: Path, intent: str, error: Exception) -> StoreFailure:
    # The driver's own error, because SQLAlchemy's text repeats the statement and its values.
    cause = str(error.orig if isinstance(error, DBAPIError) else error)
    remedy = next((remedy for fault, remedy in _REMEDIES if fault in cause), _OTHER_REMEDY)
    return StoreFailure(f"{path} could not be {intent}: {cause}; {remedy}")
