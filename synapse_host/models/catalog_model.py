"""A lane of the catalog as the host's other rooms know a model: every fact from the document and the install. Pure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from synapse_host.catalog.entries import CatalogEntry
from synapse_host.catalog.entry_backends import EntryBackend
from synapse_host.catalog.pins import catalog_profile, lane_engine
from synapse_host.downloads.installs import Install
from synapse_host.identity.numeric_profile import numeric_profile_id, numeric_profile_json
from synapse_host.models.model_package import SAFETENSORS
from synapse_host.models.registered_model import DEFAULT_POLICY, RegisteredModel


def catalog_model(
    entry: CatalogEntry, backend: EntryBackend, install: Install, blob: Callable[[str], Path]
) -> RegisteredModel:
    """The model of an installed entry on one runnable backend; ``blob`` says where content of a digest lies.

    Its fingerprint is the pin. That it is the right one is judged when the lane loads, not here.
    """
    row, described = backend.row, backend.description
    assert described is not None, f"{backend.lane_id} has no described backend; only runnable ones get a lane"
    roles = {file.role: file for file in entry.files_of([row.backend])}
    model, tokenizer, config = roles["model"], roles["tokenizer"], roles.get("config", roles["model"])
    profile = catalog_profile(entry, row)
    return RegisteredModel(
        model_id=backend.lane_id,
        backend=row.backend,
        engine=lane_engine(row),
        device_class=described.device_class,
        task=entry.task,
        family=entry.family,
        format=SAFETENSORS,
        model_path=str(blob(model.sha256)),
        model_sha256=model.sha256,
        model_size=model.size_bytes,
        tokenizer_path=str(blob(tokenizer.sha256)),
        tokenizer_sha256=tokenizer.sha256,
        config_path=str(blob(config.sha256)),
        config_sha256=config.sha256,
        pooling=row.pooling,
        normalize=row.normalize,
        max_tokens=row.max_tokens,
        vocab_size=entry.vocab_size,
        dtype=row.dtype,
        quant=row.quant,
        kernel_revision=row.engine.kernel_revision,
        manifest_digest=row.engine.manifest_digest,
        numeric_profile_json=numeric_profile_json(profile),
        numeric_profile_id=numeric_profile_id(profile),
        fingerprint=row.fingerprint,
        batch=described.recommended_batch or DEFAULT_POLICY,
        created_ms=install.installed_ms,
        catalog_id=entry.id,
    )
