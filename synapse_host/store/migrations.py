"""The numbered steps that make the store's schema; the number of the last one taken is the file's ``user_version``.

A step is never edited once released: its file exists on somebody's disk. A new one is added at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Engine

from synapse_host.errors import StoreFailure
from synapse_host.store.alias_schema import declared_aliases
from synapse_host.store.download_schema import installs_and_downloads, members_by_name
from synapse_host.store.job_migration import durable_jobs, jobs_may_be_cancelled
from synapse_host.store.profile_schema import profiles_of_models
from synapse_host.store.self_check_schema import create_self_checks


def _module_and_models(connection: Connection) -> None:
    connection.exec_driver_sql(
        """
        CREATE TABLE module_meta (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            module_generation INTEGER NOT NULL,
            table_epoch INTEGER NOT NULL
        )
        """
    )
    connection.exec_driver_sql("INSERT INTO module_meta VALUES (1, 0, 0)")
    connection.exec_driver_sql(
        """
        CREATE TABLE models (
            model_id TEXT NOT NULL PRIMARY KEY CHECK (model_id <> ''),
            engine TEXT NOT NULL,
            backend TEXT NOT NULL,
            task TEXT NOT NULL,
            model_path TEXT NOT NULL,
            model_sha256 TEXT NOT NULL CHECK (length(model_sha256) = 64),
            model_size INTEGER NOT NULL CHECK (model_size > 0),
            tokenizer_path TEXT NOT NULL,
            tokenizer_sha256 TEXT NOT NULL CHECK (length(tokenizer_sha256) = 64),
            config_path TEXT NOT NULL,
            config_sha256 TEXT NOT NULL CHECK (length(config_sha256) = 64),
            pooling TEXT NOT NULL,
            normalize INTEGER NOT NULL CHECK (normalize IN (0, 1)),
            max_tokens INTEGER NOT NULL CHECK (max_tokens > 0),
            dtype TEXT NOT NULL,
            quant TEXT NOT NULL,
            format TEXT NOT NULL,
            device_class TEXT NOT NULL,
            vocab_size INTEGER NOT NULL CHECK (vocab_size > 0),
            batch_rows INTEGER NOT NULL CHECK (batch_rows > 0),
            batch_token_budget INTEGER NOT NULL CHECK (batch_token_budget > 0),
            manifest_digest TEXT,
            family TEXT NOT NULL,
            fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
            numeric_profile_json TEXT NOT NULL,
            created_ms INTEGER NOT NULL
        )
        """
    )
    connection.exec_driver_sql("CREATE INDEX ix_models_fingerprint ON models (fingerprint)")


def _certifications_and_performance(connection: Connection) -> None:
    connection.exec_driver_sql(
        """
        CREATE TABLE certifications (
            machine_profile_hash TEXT NOT NULL CHECK (length(machine_profile_hash) = 64),
            fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
            model_id TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('certified', 'uncertified')),
            reason TEXT,
            assurance TEXT NOT NULL CHECK (assurance IN ('measured', 'declared')),
            os_build TEXT NOT NULL,
            module_generation INTEGER NOT NULL,
            kernel_revision TEXT,
            manifest_digest TEXT,
            measured_at_ms INTEGER NOT NULL,
            evidence_json TEXT NOT NULL,
            PRIMARY KEY (machine_profile_hash, fingerprint),
            CHECK (status = 'certified' OR reason IS NOT NULL)
        )
        """
    )
    connection.exec_driver_sql(
        """
        CREATE TABLE performance (
            machine_profile_hash TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            model_id TEXT NOT NULL,
            throughput_tok_s REAL NOT NULL,
            cold_load_ms INTEGER NOT NULL,
            single_item_latency_p50_ms REAL NOT NULL,
            measured_at_ms INTEGER NOT NULL,
            module_generation INTEGER NOT NULL,
            PRIMARY KEY (machine_profile_hash, fingerprint),
            FOREIGN KEY (machine_profile_hash, fingerprint)
                REFERENCES certifications (machine_profile_hash, fingerprint) ON DELETE CASCADE
        )
        """
    )


def _weights_in_several_files(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE models ADD COLUMN shards_json TEXT NOT NULL DEFAULT '[]'")


Migration = Callable[[Connection], None]

#: Step N of the tuple (from 1) takes a store of version N - 1 to version N.
MIGRATIONS: tuple[Migration, ...] = (
    _module_and_models,
    _certifications_and_performance,
    _weights_in_several_files,
    create_self_checks,
    installs_and_downloads,
    durable_jobs,
    declared_aliases,
    jobs_may_be_cancelled,
    profiles_of_models,
    members_by_name,
)
LATEST_VERSION = len(MIGRATIONS)


def migrate(engine: Engine, *, target: int = LATEST_VERSION) -> None:
    """Take the store to version ``target``, each step and its number in one transaction.

    Raises:
        StoreFailure: the store is of a newer version than this program knows; nothing was changed.
        sqlalchemy.exc.SQLAlchemyError: a step failed; the store is left at the step before it.

    """
    while True:
        with engine.begin() as connection:
            version = stored_version(connection)
            if version > LATEST_VERSION:
                raise StoreFailure(
                    f"the store is of version {version}, newer than version {LATEST_VERSION} of this program; "
                    "start it with the newer program, or give this one another data directory"
                )
            if version >= target:
                return
            MIGRATIONS[version](connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {version + 1}")


def stored_version(connection: Connection) -> int:
    """The number of the last step the store has taken; 0 for a new file."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
