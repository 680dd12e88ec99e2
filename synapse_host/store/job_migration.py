"""The steps that make the tables of durable jobs."""

from __future__ import annotations

from sqlalchemy import Connection

_STATES = "('queued', 'running', 'paused_needs_reauth', 'done', 'failed_transient', 'failed_permanent')"
_STATES_WITH_CANCELLED = _STATES.replace(")", ", 'cancelled')")


def _jobs_table(states: str) -> str:
    return f"""
    CREATE TABLE jobs (
        job_pk INTEGER PRIMARY KEY,
        job_id TEXT NOT NULL UNIQUE,
        work_pk INTEGER NOT NULL REFERENCES job_works (work_pk),
        kind TEXT NOT NULL,
        request_key TEXT NOT NULL,
        request_digest TEXT NOT NULL,
        module_generation INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN {states}),
        model_id TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        identity_json TEXT NOT NULL,
        item_count INTEGER NOT NULL CHECK (item_count > 0),
        page_count INTEGER NOT NULL CHECK (page_count >= 0),
        items_done INTEGER NOT NULL CHECK (items_done >= 0),
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        execution_expires_ms INTEGER NOT NULL,
        result_retention_ms INTEGER NOT NULL,
        terminal_at_ms INTEGER,
        paused_at_ms INTEGER,
        resume_deadline_ms INTEGER,
        logical_handle TEXT,
        error_json TEXT,
        CHECK ((terminal_at_ms IS NULL) = (state IN ('queued', 'running', 'paused_needs_reauth'))),
        CHECK ((paused_at_ms IS NOT NULL) = (state = 'paused_needs_reauth')),
        CHECK ((error_json IS NOT NULL) = (state IN ('failed_transient', 'failed_permanent')))
    )
    """


_JOB_INDEXES = (
    "CREATE INDEX ix_jobs_request_key ON jobs (request_key)",
    "CREATE INDEX ix_jobs_work_pk ON jobs (work_pk)",
    "CREATE INDEX ix_jobs_open ON jobs (state) WHERE terminal_at_ms IS NULL",
    "CREATE INDEX ix_jobs_terminal ON jobs (terminal_at_ms) WHERE terminal_at_ms IS NOT NULL",
)
_TABLES = (
    """
    CREATE TABLE job_works (
        work_pk INTEGER PRIMARY KEY,
        request_key TEXT NOT NULL CHECK (request_key <> ''),
        request_digest TEXT NOT NULL CHECK (length(request_digest) = 64),
        fingerprint TEXT NOT NULL,
        item_count INTEGER NOT NULL CHECK (item_count > 0),
        dims INTEGER CHECK (dims > 0),
        page_count INTEGER NOT NULL CHECK (page_count >= 0),
        items_done INTEGER NOT NULL CHECK (items_done >= 0),
        UNIQUE (request_key, request_digest, fingerprint)
    )
    """,
    _jobs_table(_STATES),
    """
    CREATE TABLE job_inputs (
        job_pk INTEGER NOT NULL REFERENCES jobs (job_pk),
        chunk_no INTEGER NOT NULL,
        items_json BLOB NOT NULL,
        PRIMARY KEY (job_pk, chunk_no)
    )
    """,
    """
    CREATE TABLE job_pages (
        work_pk INTEGER NOT NULL REFERENCES job_works (work_pk),
        page_no INTEGER NOT NULL CHECK (page_no >= 0),
        rows INTEGER NOT NULL CHECK (rows > 0),
        vectors BLOB NOT NULL,
        columns_json BLOB NOT NULL,
        committed_ms INTEGER NOT NULL,
        PRIMARY KEY (work_pk, page_no)
    )
    """,
    """
    CREATE TABLE job_items (
        work_pk INTEGER NOT NULL REFERENCES job_works (work_pk),
        ordinal INTEGER NOT NULL,
        page_no INTEGER NOT NULL,
        PRIMARY KEY (work_pk, ordinal)
    ) WITHOUT ROWID
    """,
    *_JOB_INDEXES,
)


def durable_jobs(connection: Connection) -> None:
    """Make the tables of durable jobs and what finds their rows."""
    for statement in _TABLES:
        connection.exec_driver_sql(statement)


def jobs_may_be_cancelled(connection: Connection) -> None:
    """Let a job's state be ``cancelled``; SQLite changes no check of a table, so the table is made again.

    The rows that point at it are left without it for a moment, which the deferral allows until the step is committed.
    """
    statements = (
        "PRAGMA defer_foreign_keys = ON",
        "CREATE TEMP TABLE jobs_before AS SELECT * FROM jobs",
        "DROP TABLE jobs",
        _jobs_table(_STATES_WITH_CANCELLED),
        "INSERT INTO jobs SELECT * FROM temp.jobs_before",
        "DROP TABLE temp.jobs_before",
        *_JOB_INDEXES,
    )
    for statement in statements:
        connection.exec_driver_sql(statement)
