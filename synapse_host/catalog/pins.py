"""What a catalog lane's fingerprint must be, computed from the document alone.

The construction is that of every lane (``identity.numeric_profile``), with one member more: the digest of the lane's
canonical profile entry. It covers whatever the document says about what the lane computes, so that no such field can
change under a pin. ``scripts/catalog_pins.py`` computes the same from the file with the standard library alone.
"""

from __future__ import annotations

from typing import Any

from synapse_host.catalog.entries import CatalogBackend, CatalogEntry, CatalogFile
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import (
    PROFILE_POOLING,
    CertifiedShape,
    EngineIdentity,
    NumericProfile,
    fingerprint,
)


def profile_entry(entry: CatalogEntry, row: CatalogBackend) -> dict[str, Any]:
    """Everything the document says about what a lane computes; what it says to people and to schedulers is left out."""
    return {
        "backend": row.backend,
        "catalog_id": entry.id,
        "dims": row.dims,
        "dtype": row.dtype,
        "engine": row.engine.identity.as_json(),
        "family": entry.family,
        "files": [
            {"role": file.role, "sha256": file.sha256, "size_bytes": file.size_bytes}
            for file in entry.files_of([row.backend])
        ],
        "kernel_revision": row.engine.kernel_revision,
        "max_tokens": row.max_tokens,
        "normalize": row.normalize,
        "operation": entry.task,
        "pooling": row.pooling,
        "quant": row.quant,
        "sanitized_tokenizer_sha256": entry.sanitized_tokenizer_sha256,
        "template": None if entry.template is None else dict(entry.template),
        "vocab_size": entry.vocab_size,
    }


def catalog_profile(entry: CatalogEntry, row: CatalogBackend) -> NumericProfile:
    """The numeric profile of a catalog lane, as its pin is made of it."""
    tokenizer = _file(entry, row, "tokenizer")
    return NumericProfile(
        model_digest=_package_digest(entry, row),
        quant=row.quant,
        engine=lane_engine(row),
        sanitized_tokenizer_digest=entry.sanitized_tokenizer_sha256 or (tokenizer.sha256 if tokenizer else ""),
        pooling=PROFILE_POOLING[row.pooling],
        normalization="l2" if row.normalize else "none",
        dtype=row.dtype,
        certified_shape=CertifiedShape(max_context_tokens=row.max_tokens),
        prompt_template=None if entry.template is None else canonical_json(entry.template).decode(),
        operation=entry.task,
        kernel_revision=row.engine.kernel_revision,
        manifest_profile_digest=sha256_hex(canonical_json(profile_entry(entry, row))),
    )


def computed_pin(entry: CatalogEntry, row: CatalogBackend) -> str:
    """The fingerprint a lane has if the document is whole; ``row.fingerprint`` is what it claims."""
    return fingerprint(catalog_profile(entry, row))


def lane_engine(row: CatalogBackend) -> EngineIdentity:
    """The engine as it is said on every answer: its own flags and the precision it computes in."""
    identity = row.engine.identity
    return EngineIdentity(identity.engine, identity.version, {**identity.build_flags, "precision": row.dtype})


def _package_digest(entry: CatalogEntry, row: CatalogBackend) -> str:
    """The digest of all but the tokenizer: of the weights alone where there is no config.json."""
    model, config = _file(entry, row, "model"), _file(entry, row, "config")
    assert model is not None, f"{entry.id} has no weights for {row.backend}; the document's check refuses that"
    if config is None:
        return model.sha256
    return sha256_hex(canonical_json([["config", config.sha256], ["model", model.sha256]]))


def _file(entry: CatalogEntry, row: CatalogBackend, role: str) -> CatalogFile | None:
    return next((file for file in entry.files_of([row.backend]) if file.role == role), None)
