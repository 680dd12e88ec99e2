"""The step that lets a stored model say which profile it is checked against at load."""

from __future__ import annotations

from sqlalchemy import Connection


def profiles_of_models(connection: Connection) -> None:
    """The migration: no profile for the models there are."""
    connection.exec_driver_sql("ALTER TABLE models ADD COLUMN profile TEXT CHECK (profile <> '')")
