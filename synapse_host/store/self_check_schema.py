"""The step that makes the table of checks at load."""

from __future__ import annotations

from sqlalchemy import Connection


def create_self_checks(connection: Connection) -> None:
    """One row for each key that was decided; a pending check has none."""
    connection.exec_driver_sql(
        """
        CREATE TABLE self_checks (
            check_id TEXT NOT NULL PRIMARY KEY CHECK (length(check_id) = 64),
            catalog_id TEXT NOT NULL,
            backend TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('passed', 'failed')),
            reason TEXT,
            key_json TEXT NOT NULL,
            figures_json TEXT NOT NULL,
            checked_at_ms INTEGER NOT NULL,
            CHECK ((state = 'failed') = (reason IS NOT NULL))
        )
        """
    )
    connection.exec_driver_sql("CREATE INDEX ix_self_checks_catalog_id ON self_checks (catalog_id)")
