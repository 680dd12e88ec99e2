"""The rows of durable jobs. Times are milliseconds since the epoch, digests lowercase SHA-256 hex.

A job is one attempt; its pages belong to the *work*, which the attempts under one key, content and fingerprint share.
"""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class JobWorkRow(SQLModel, table=True):
    """What attempts share: the pages committed so far. ``dims`` is known with the first of them."""

    __tablename__ = "job_works"

    work_pk: int | None = Field(default=None, primary_key=True)
    request_key: str
    request_digest: str
    fingerprint: str
    item_count: int
    dims: int | None = None
    page_count: int = 0
    items_done: int = 0


class JobRow(SQLModel, table=True):
    """One attempt at a work. ``page_count`` and ``items_done`` are what its readers see."""

    __tablename__ = "jobs"

    job_pk: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(unique=True)
    work_pk: int = Field(foreign_key="job_works.work_pk", index=True)
    kind: str
    request_key: str = Field(index=True)
    request_digest: str
    module_generation: int
    state: str
    model_id: str
    fingerprint: str
    identity_json: str
    item_count: int
    page_count: int
    items_done: int
    created_ms: int
    updated_ms: int
    execution_expires_ms: int
    result_retention_ms: int
    terminal_at_ms: int | None = None
    paused_at_ms: int | None = None
    resume_deadline_ms: int | None = None
    logical_handle: str | None = None
    error_json: str | None = None


class JobInputRow(SQLModel, table=True):
    """Texts of an open job, in the order of execution, many to a row; gone when the job ends."""

    __tablename__ = "job_inputs"

    job_pk: int = Field(primary_key=True, foreign_key="jobs.job_pk")
    chunk_no: int = Field(primary_key=True)
    items_json: bytes


class JobPageRow(SQLModel, table=True):
    """Committed rows: their vectors as little-endian f32, and the small columns as one JSON object."""

    __tablename__ = "job_pages"

    work_pk: int = Field(primary_key=True, foreign_key="job_works.work_pk")
    page_no: int = Field(primary_key=True)
    rows: int
    vectors: bytes
    columns_json: bytes
    committed_ms: int


class JobItemRow(SQLModel, table=True):
    """The checkpoint of one item: the page that holds its vector."""

    __tablename__ = "job_items"

    work_pk: int = Field(primary_key=True, foreign_key="job_works.work_pk")
    ordinal: int = Field(primary_key=True)
    page_no: int
