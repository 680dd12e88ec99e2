"""The rows of the store. Their columns are made by ``migrations``, and a test holds the two against each other.

SQLModel does not validate the fields of a table class; the constraints that guard the file are in the migrations.
Times are milliseconds since the epoch, digests lowercase SHA-256 hex, sizes bytes.
"""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class ModuleMetaRow(SQLModel, table=True):
    """The single row of the store itself: how often a host booted on it, its alias table's version, its name."""

    __tablename__ = "module_meta"

    id: int = Field(default=1, primary_key=True)
    module_generation: int = 0
    table_epoch: int = 0
    host_id: str = ""


class ModelRow(SQLModel, table=True):
    """A model an operator loaded: the files it was pinned to at ingest and the identity minted from them."""

    __tablename__ = "models"

    model_id: str = Field(primary_key=True)
    engine: str
    backend: str
    task: str
    model_path: str
    model_sha256: str
    model_size: int
    tokenizer_path: str
    tokenizer_sha256: str
    config_path: str
    config_sha256: str
    pooling: str
    normalize: bool
    max_tokens: int
    dtype: str
    quant: str
    format: str
    device_class: str
    vocab_size: int
    batch_rows: int
    batch_token_budget: int
    manifest_digest: str | None = None
    family: str
    fingerprint: str = Field(index=True)
    numeric_profile_json: str
    created_ms: int
    shards_json: str = "[]"
    profile: str | None = None


class CertificationRow(SQLModel, table=True):
    """What a probe found for one fingerprint on one machine profile; ``reason`` says why not, when not certified."""

    __tablename__ = "certifications"

    machine_profile_hash: str = Field(primary_key=True)
    fingerprint: str = Field(primary_key=True)
    model_id: str
    status: str
    reason: str | None = None
    assurance: str = "measured"
    os_build: str
    module_generation: int
    kernel_revision: str | None = None
    manifest_digest: str | None = None
    measured_at_ms: int
    evidence_json: str


class PerformanceRow(SQLModel, table=True):
    """How fast the probe found a lane: real tokens per second, and milliseconds for a cold load and a single item."""

    __tablename__ = "performance"

    machine_profile_hash: str = Field(primary_key=True)
    fingerprint: str = Field(primary_key=True)
    model_id: str
    throughput_tok_s: float
    cold_load_ms: int
    single_item_latency_p50_ms: float
    measured_at_ms: int
    module_generation: int


class SelfCheckTableRow(SQLModel, table=True):
    """What the check at load found for one key; ``reason`` says what missed, where it failed."""

    __tablename__ = "self_checks"

    check_id: str = Field(primary_key=True)
    catalog_id: str = Field(index=True)
    backend: str
    state: str
    reason: str | None = None
    key_json: str
    figures_json: str
    checked_at_ms: int
