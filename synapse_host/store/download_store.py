"""Download jobs and their keys. Each decision is one transaction, so that no two callers can decide differently."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, col, delete, func, select

from synapse_host.errors import IdempotencyConflict, ModelInUse
from synapse_host.store.database import Store
from synapse_host.store.download_tables import DownloadKeyRow, DownloadRow, InstallMemberRow, InstallRow
from synapse_host.store.tables import SelfCheckTableRow


class DownloadStore:
    """Download jobs. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, fresh: DownloadRow, key: DownloadKeyRow, *, complete: bool, expired_ms: int) -> DownloadRow:
        """Bind a request key to the job that answers it: ``fresh`` itself, or one that is there already.

        A job of the same manifest that is still open is shared. A committed one answers its own key again while the
        entry is ``complete``. What ended at or before ``expired_ms`` is forgotten first, keys included.

        Raises:
            IdempotencyConflict: the key is bound to other content; details ``request_key``, ``job_id``.

        """
        return await self._store.run(lambda session: _begin(session, fresh, key, complete, expired_ms))

    async def commit(self, job_id: str, now_ms: int, install: InstallRow, members: Sequence[InstallMemberRow]) -> bool:
        """End an open job as committed and write its install, together; False when it had ended, nothing done then."""

        def write(session: Session) -> bool:
            row = _open_row(session, job_id)
            if row is None:
                return False
            row.state, row.terminal_at_ms = "committed", now_ms
            known = session.get(InstallRow, (install.catalog_id, install.manifest_digest))
            if known is not None:
                session.delete(known)
                session.flush()
            session.add(install)
            session.flush()
            session.add_all(members)
            return True

        return await self._store.run(write)

    async def end(self, job_id: str, now_ms: int, *, error_json: str | None) -> bool:
        """End an open job as failed, or without an error as cancelled; False when it had ended."""

        def write(session: Session) -> bool:
            row = _open_row(session, job_id)
            if row is None:
                return False
            row.state, row.terminal_at_ms, row.error_json = _ended_state(error_json), now_ms, error_json
            return True

        return await self._store.run(write)

    async def fail_open(self, now_ms: int, error_json: str) -> list[DownloadRow]:
        """End every open job as failed, for a boot finds none that runs; those that were."""

        def write(session: Session) -> list[DownloadRow]:
            rows = list(session.exec(select(DownloadRow).where(DownloadRow.state == "open")))
            for row in rows:
                row.state, row.terminal_at_ms, row.error_json = "failed", now_ms, error_json
            return rows

        return await self._store.run(write)

    async def get(self, job_id: str, *, expired_ms: int) -> DownloadRow | None:
        """The job, unless it ended at or before ``expired_ms``."""

        def read(session: Session) -> DownloadRow | None:
            row = session.get(DownloadRow, job_id)
            expired = row is None or (row.terminal_at_ms is not None and row.terminal_at_ms <= expired_ms)
            return None if expired else row

        return await self._store.run(read)

    async def remove_installs(self, catalog_id: str) -> list[str]:
        """Delete every install of an entry and what its checks found; the manifest digests, in order.

        Raises:
            ModelInUse: a download of the entry is open; details ``catalog_id``, ``holders``.

        """
        return await self._store.run(lambda session: _remove_installs(session, catalog_id))

    async def open_count(self) -> int:
        """How many jobs are open."""
        counted = select(func.count()).select_from(DownloadRow).where(DownloadRow.state == "open")
        return await self._store.run(lambda session: session.exec(counted).one())


def _begin(session: Session, fresh: DownloadRow, key: DownloadKeyRow, complete: bool, expired_ms: int) -> DownloadRow:
    _forget_expired(session, expired_ms)
    bound = session.get(DownloadKeyRow, key.request_key)
    if bound is not None:
        _refuse_other_content(bound, key)
        before = session.get_one(DownloadRow, bound.job_id)
        if _answers(before, complete):
            return before
    row = _open_of(session, fresh.catalog_id, fresh.manifest_digest)
    if row is None:
        session.add(fresh)
        session.flush()
        row = fresh
    session.merge(DownloadKeyRow(request_key=key.request_key, request_digest=key.request_digest, job_id=row.job_id))
    return row


def _refuse_other_content(bound: DownloadKeyRow, key: DownloadKeyRow) -> None:
    if bound.request_digest != key.request_digest:
        raise IdempotencyConflict(
            f"request_key {key.request_key!r} is bound to another download, job {bound.job_id!r}; use a new key",
            details={"request_key": key.request_key, "job_id": bound.job_id},
        )


def _answers(job: DownloadRow, complete: bool) -> bool:
    """Whether the job a key is bound to answers it again, rather than another one."""
    return job.state == "committed" and complete


def _open_of(session: Session, catalog_id: str, manifest_digest: str) -> DownloadRow | None:
    found = select(DownloadRow).where(
        DownloadRow.catalog_id == catalog_id,
        DownloadRow.manifest_digest == manifest_digest,
        DownloadRow.state == "open",
    )
    return session.exec(found).first()


def _open_row(session: Session, job_id: str) -> DownloadRow | None:
    row = session.get(DownloadRow, job_id)
    return row if row is not None and row.state == "open" else None


def _ended_state(error_json: str | None) -> str:
    return "cancelled" if error_json is None else "failed"


def _forget_expired(session: Session, expired_ms: int) -> None:
    # The keys go with their jobs, by the foreign key.
    session.exec(
        delete(DownloadRow).where(
            col(DownloadRow.terminal_at_ms).is_not(None), col(DownloadRow.terminal_at_ms) <= expired_ms
        )
    )


def _remove_installs(session: Session, catalog_id: str) -> list[str]:
    running = select(DownloadRow).where(DownloadRow.catalog_id == catalog_id, DownloadRow.state == "open")
    held = [{"kind": "job", "job_id": row.job_id} for row in session.exec(running)]
    if held:
        raise ModelInUse(
            f"{catalog_id!r} is held by download {held[0]['job_id']!r}; wait, or end it with "
            f"synapse-host models cancel {held[0]['job_id']}, then remove again",
            details={"catalog_id": catalog_id, "holders": held},
        )
    installs = select(InstallRow).where(InstallRow.catalog_id == catalog_id)
    rows = list(session.exec(installs.order_by(col(InstallRow.manifest_digest))))
    for row in rows:
        session.delete(row)
    session.exec(delete(SelfCheckTableRow).where(col(SelfCheckTableRow.catalog_id) == catalog_id))
    return [row.manifest_digest for row in rows]
