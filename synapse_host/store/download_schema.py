"""The step of the schema that brings installs, downloads and file verifications, and gives the host a name."""

from __future__ import annotations

from sqlalchemy import Connection

_STEPS = (
    # By this name the host pins content of a cache it may share; it moves with the file.
    "ALTER TABLE module_meta ADD COLUMN host_id TEXT NOT NULL DEFAULT ''",
    "UPDATE module_meta SET host_id = 'host-' || lower(hex(randomblob(8)))",
    """
    CREATE TABLE installs (
        catalog_id TEXT NOT NULL CHECK (catalog_id <> ''),
        manifest_digest TEXT NOT NULL CHECK (length(manifest_digest) = 64),
        valid INTEGER NOT NULL CHECK (valid IN (0, 1)),
        installed_ms INTEGER NOT NULL,
        PRIMARY KEY (catalog_id, manifest_digest)
    )
    """,
    """
    CREATE TABLE install_members (
        catalog_id TEXT NOT NULL,
        manifest_digest TEXT NOT NULL,
        role TEXT NOT NULL CHECK (role <> ''),
        name TEXT NOT NULL CHECK (name <> ''),
        sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
        size INTEGER NOT NULL CHECK (size >= 0),
        PRIMARY KEY (catalog_id, manifest_digest, role),
        FOREIGN KEY (catalog_id, manifest_digest)
            REFERENCES installs (catalog_id, manifest_digest) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE file_verifications (
        sha256 TEXT NOT NULL PRIMARY KEY CHECK (length(sha256) = 64),
        device INTEGER NOT NULL,
        inode INTEGER NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        ctime_ns INTEGER NOT NULL,
        verified_ms INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE downloads (
        job_id TEXT NOT NULL PRIMARY KEY,
        catalog_id TEXT NOT NULL,
        manifest_digest TEXT NOT NULL CHECK (length(manifest_digest) = 64),
        module_generation INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('open', 'committed', 'failed', 'cancelled')),
        created_ms INTEGER NOT NULL,
        terminal_at_ms INTEGER,
        error_json TEXT,
        CHECK ((state = 'open') = (terminal_at_ms IS NULL)),
        CHECK ((state = 'failed') = (error_json IS NOT NULL))
    )
    """,
    "CREATE UNIQUE INDEX ix_downloads_one_open ON downloads (catalog_id, manifest_digest) WHERE state = 'open'",
    """
    CREATE TABLE download_keys (
        request_key TEXT NOT NULL PRIMARY KEY CHECK (request_key <> ''),
        request_digest TEXT NOT NULL CHECK (length(request_digest) = 64),
        job_id TEXT NOT NULL REFERENCES downloads (job_id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX ix_download_keys_job ON download_keys (job_id)",
)


def installs_and_downloads(connection: Connection) -> None:
    """Make the tables."""
    for step in _STEPS:
        connection.exec_driver_sql(step)


def members_by_name(connection: Connection) -> None:
    """Tell the files of an install apart by name: backends may want different files of one role."""
    for step in (
        """
        CREATE TABLE named_members (
            catalog_id TEXT NOT NULL,
            manifest_digest TEXT NOT NULL,
            name TEXT NOT NULL CHECK (name <> ''),
            role TEXT NOT NULL CHECK (role <> ''),
            sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
            size INTEGER NOT NULL CHECK (size >= 0),
            PRIMARY KEY (catalog_id, manifest_digest, name),
            FOREIGN KEY (catalog_id, manifest_digest)
                REFERENCES installs (catalog_id, manifest_digest) ON DELETE CASCADE
        )
        """,
        "INSERT INTO named_members SELECT catalog_id, manifest_digest, name, role, sha256, size FROM install_members",
        "DROP TABLE install_members",
        "ALTER TABLE named_members RENAME TO install_members",
    ):
        connection.exec_driver_sql(step)
