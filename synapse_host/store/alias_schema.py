"""The step of the schema that brings the table of declared equivalences."""

from __future__ import annotations

from sqlalchemy import Connection

_STEPS = (
    """
    CREATE TABLE alias_rows (
        alias_pk INTEGER PRIMARY KEY,
        fingerprint_a TEXT NOT NULL CHECK (fingerprint_a <> ''),
        fingerprint_b TEXT NOT NULL CHECK (fingerprint_b > fingerprint_a),
        valid_from_ms INTEGER NOT NULL,
        valid_to_ms INTEGER CHECK (valid_to_ms IS NULL OR valid_to_ms >= valid_from_ms),
        evidence_json TEXT NOT NULL,
        retraction_json TEXT NOT NULL
    )
    """,
    # A pair may be declared again after it was retracted, but holds once at a time.
    "CREATE UNIQUE INDEX ux_alias_live ON alias_rows (fingerprint_a, fingerprint_b) WHERE valid_to_ms IS NULL",
)


def declared_aliases(connection: Connection) -> None:
    """The migration."""
    for step in _STEPS:
        connection.exec_driver_sql(step)
