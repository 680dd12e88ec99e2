"""The rows of installs, downloads and file verifications; their columns are made by ``download_schema``.

Times are milliseconds since the epoch, digests lowercase SHA-256 hex, sizes bytes.
"""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class InstallRow(SQLModel, table=True):
    """A manifest of a catalog entry whose files are in the model cache; not ``valid`` once one was found damaged."""

    __tablename__ = "installs"

    catalog_id: str = Field(primary_key=True)
    manifest_digest: str = Field(primary_key=True)
    valid: bool = True
    installed_ms: int


class InstallMemberRow(SQLModel, table=True):
    """One file of an install."""

    __tablename__ = "install_members"

    catalog_id: str = Field(primary_key=True)
    manifest_digest: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    role: str
    sha256: str
    size: int


class FileVerificationRow(SQLModel, table=True):
    """What a cached file looked like when its content was last found to be what its digest says."""

    __tablename__ = "file_verifications"

    sha256: str = Field(primary_key=True)
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    verified_ms: int


class DownloadRow(SQLModel, table=True):
    """A download job. ``open`` until its one terminal transition."""

    __tablename__ = "downloads"

    job_id: str = Field(primary_key=True)
    catalog_id: str
    manifest_digest: str
    module_generation: int
    state: str = "open"
    created_ms: int
    terminal_at_ms: int | None = None
    error_json: str | None = None


class DownloadKeyRow(SQLModel, table=True):
    """A request key and what it is bound to: the digest of the request's content, and the job that answers it."""

    __tablename__ = "download_keys"

    request_key: str = Field(primary_key=True)
    request_digest: str
    job_id: str
