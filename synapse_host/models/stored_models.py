"""Registered models in the store: one row each, and back."""

from __future__ import annotations

import json
from typing import cast

from synapse_host.hookspecs import BatchPolicy, DType, Pooling, Task
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.models.registered_model import RegisteredModel, WeightShard
from synapse_host.store.tables import ModelRow


def row_of(model: RegisteredModel) -> ModelRow:
    """The row that keeps ``model``."""
    return ModelRow(
        model_id=model.model_id,
        engine=model.engine.engine,
        backend=model.backend,
        device_class=model.device_class,
        task=model.task,
        format=model.format,
        model_path=model.model_path,
        model_sha256=model.model_sha256,
        model_size=model.model_size,
        tokenizer_path=model.tokenizer_path,
        tokenizer_sha256=model.tokenizer_sha256,
        config_path=model.config_path,
        config_sha256=model.config_sha256,
        pooling=model.pooling,
        normalize=model.normalize,
        max_tokens=model.max_tokens,
        vocab_size=model.vocab_size,
        dtype=model.dtype,
        quant=model.quant,
        family=model.family,
        manifest_digest=model.manifest_digest,
        fingerprint=model.fingerprint,
        batch_rows=model.batch.rows,
        batch_token_budget=model.batch.token_budget,
        numeric_profile_json=model.numeric_profile_json,
        created_ms=model.created_ms,
        shards_json=json.dumps([[shard.file, shard.path, shard.sha256, shard.size] for shard in model.shards]),
        profile=model.profile,
    )


def model_of(row: ModelRow) -> RegisteredModel:
    """The model a row keeps; engine identity and kernel revision are read from its numeric profile."""
    profile = json.loads(row.numeric_profile_json)
    engine = profile["engine"]
    return RegisteredModel(
        model_id=row.model_id,
        backend=row.backend,
        engine=EngineIdentity(engine["engine"], engine["version"], engine["build_flags"]),
        device_class=row.device_class,
        task=cast(Task, row.task),
        family=row.family,
        format=row.format,
        model_path=row.model_path,
        model_sha256=row.model_sha256,
        model_size=row.model_size,
        tokenizer_path=row.tokenizer_path,
        tokenizer_sha256=row.tokenizer_sha256,
        config_path=row.config_path,
        config_sha256=row.config_sha256,
        pooling=cast(Pooling, row.pooling),
        normalize=row.normalize,
        max_tokens=row.max_tokens,
        vocab_size=row.vocab_size,
        dtype=cast(DType, row.dtype),
        quant=row.quant,
        kernel_revision=profile.get("kernel_revision"),
        manifest_digest=row.manifest_digest,
        numeric_profile_json=row.numeric_profile_json,
        numeric_profile_id=sha256_hex(row.numeric_profile_json.encode()),
        fingerprint=row.fingerprint,
        batch=BatchPolicy(row.batch_rows, row.batch_token_budget),
        created_ms=row.created_ms,
        shards=tuple(WeightShard(*shard) for shard in json.loads(row.shards_json)),
        profile=row.profile,
    )
