"""Durable jobs in the store, as pieces of transactions: what belongs together is put together by the jobs' ledger.

Every function works inside the caller's transaction and raises what SQLAlchemy raises. Many rows at once go through
the driver's ``executemany``: the object mapper would take longer for them than computing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from synapse_host.store.job_tables import JobInputRow, JobItemRow, JobPageRow, JobRow, JobWorkRow


def job_by_key(session: Session, request_key: str) -> JobRow | None:
    """The newest attempt under a request key."""
    return session.exec(
        select(JobRow).where(col(JobRow.request_key) == request_key).order_by(col(JobRow.job_pk).desc()).limit(1)
    ).first()


def is_known_key(session: Session, request_key: str) -> bool:
    """Whether a job, open or ended, has this request key."""
    return job_by_key(session, request_key) is not None


def job_by_id(session: Session, job_id: str) -> JobRow | None:
    """The job of this id."""
    return session.exec(select(JobRow).where(col(JobRow.job_id) == job_id)).first()


def open_jobs(session: Session) -> list[JobRow]:
    """Every job that has not ended, in the order of admission."""
    return list(
        session.exec(select(JobRow).where(col(JobRow.terminal_at_ms).is_(None)).order_by(col(JobRow.job_pk))).all()
    )


def newest_jobs(session: Session, most: int) -> list[JobRow]:
    """The jobs admitted last, the newest first."""
    return list(session.exec(select(JobRow).order_by(col(JobRow.job_pk).desc()).limit(most)).all())


def open_by_state(session: Session) -> dict[str, int]:
    """How many jobs there are in each state that is not terminal."""
    rows = session.exec(
        select(JobRow.state, func.count()).where(col(JobRow.terminal_at_ms).is_(None)).group_by(col(JobRow.state))
    )
    return dict(rows.all())


def work_of(session: Session, request_key: str, request_digest: str, fingerprint: str) -> JobWorkRow | None:
    """The pages that attempts under this key, content and fingerprint share."""
    return session.exec(
        select(JobWorkRow).where(
            col(JobWorkRow.request_key) == request_key,
            col(JobWorkRow.request_digest) == request_digest,
            col(JobWorkRow.fingerprint) == fingerprint,
        )
    ).first()


def checkpointed(session: Session, work_pk: int) -> set[int]:
    """The ordinals of the items whose vectors are in a committed page."""
    return set(session.exec(select(JobItemRow.ordinal).where(col(JobItemRow.work_pk) == work_pk)).all())


def add_inputs(session: Session, job_pk: int, chunks: Iterable[bytes]) -> None:
    """Keep the texts of a job, in the order of execution."""
    rows = [(job_pk, number, chunk) for number, chunk in enumerate(chunks)]
    if rows:
        session.connection().exec_driver_sql("INSERT INTO job_inputs VALUES (?, ?, ?)", rows)


def input_chunk(session: Session, job_pk: int, chunk_no: int) -> bytes | None:
    """One row of the texts of a job; None past the last."""
    return session.exec(
        select(JobInputRow.items_json).where(col(JobInputRow.job_pk) == job_pk, col(JobInputRow.chunk_no) == chunk_no)
    ).first()


def drop_inputs(session: Session, job_pk: int) -> None:
    """Forget the texts of a job."""
    session.exec(delete(JobInputRow).where(col(JobInputRow.job_pk) == job_pk))


def add_page(session: Session, page: JobPageRow, ordinals: Sequence[int]) -> None:
    """Add a page and the checkpoint of each of its items; an item that has one already is an error."""
    connection = session.connection()
    connection.exec_driver_sql(
        "INSERT INTO job_pages VALUES (?, ?, ?, ?, ?, ?)",
        (page.work_pk, page.page_no, page.rows, page.vectors, page.columns_json, page.committed_ms),
    )
    rows = [(page.work_pk, ordinal, page.page_no) for ordinal in sorted(ordinals)]
    connection.exec_driver_sql("INSERT INTO job_items VALUES (?, ?, ?)", rows)


def page_of(session: Session, work_pk: int, page_no: int) -> JobPageRow | None:
    """One committed page."""
    return session.get(JobPageRow, (work_pk, page_no))


def item_count_of(session: Session, work_pk: int) -> int:
    """How many items have their checkpoint."""
    return session.exec(select(func.count()).where(col(JobItemRow.work_pk) == work_pk)).one()


def kept_too_long(session: Session, now_ms: int, request_key: str | None = None) -> list[JobRow]:
    """Jobs that ended longer ago than their results need to be kept, those of one key or all."""
    statement = select(JobRow).where(
        col(JobRow.terminal_at_ms).is_not(None),
        col(JobRow.terminal_at_ms) + col(JobRow.result_retention_ms) <= now_ms,
    )
    if request_key is not None:
        statement = statement.where(col(JobRow.request_key) == request_key)
    return list(session.exec(statement).all())


def forget(session: Session, job: JobRow) -> None:
    """Delete an ended job, and the pages of its work when no other attempt shares them."""
    work_pk = job.work_pk
    session.delete(job)
    session.flush()
    if session.exec(select(JobRow.job_pk).where(col(JobRow.work_pk) == work_pk).limit(1)).first() is None:
        for table in (JobItemRow, JobPageRow):
            session.exec(delete(table).where(col(table.work_pk) == work_pk))
        session.exec(delete(JobWorkRow).where(col(JobWorkRow.work_pk) == work_pk))
