"""A catalog of tiny models, with its document, weights, mirror and references, for tests of all the catalog does.

The host serves it in the place of the shipped one where ``SYNAPSE_TEST_CATALOG`` names its document. Its lanes run on
the backends every test machine has; its rows for real accelerators are what the shipped ones are, data.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlmodel import Session

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.pin_owners import install_owner
from synapse_host.catalog.document import parse_catalog
from synapse_host.catalog.entries import CATALOG_BACKENDS, Catalog, CatalogEntry
from synapse_host.catalog.pins import computed_pin
from synapse_host.certification.self_check_fixtures import packed, sealed
from synapse_host.hookspecs import BackendDescription
from synapse_host.identity.digests import sha256_hex
from synapse_host.owned_engine import reference_plugin
from synapse_host.settings import resolve_paths
from synapse_host.store.database import Store
from synapse_host.store.download_tables import InstallMemberRow, InstallRow
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, TinyModel, write_model
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker

#: The ids: two embedders, the first the default, a reranker on two backends, and one that only a setting gives a lane.
EMBED, OTHER, RERANK, SHY = "tiny-embed", "tiny-other", "tiny-reranker", "tiny-shy-reranker"
#: Tokens a text or a pair may have.
MAX_TOKENS = 40
_SHIPPED = ("metal", "reference", "cpu")
_ROWS = {
    EMBED: ("metal", "reference", "cuda"),
    OTHER: ("reference",),
    RERANK: ("reference", "cpu"),
    SHY: ("vulkan",),
}
_MODELS: Mapping[str, TinyModel] = {
    EMBED: TinyBert(61, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=160),
    OTHER: TinyBert(62, hidden=24, layers=1, heads=3, intermediate=40, vocab=120, positions=160),
    RERANK: TinyBertReranker(63, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=160),
    SHY: TinyBertReranker(64, hidden=24, layers=1, heads=3, intermediate=40, vocab=120, positions=160),
}
_TEMPLATE = {"layout": "pair", "score": "logit", "separator": 3}
_LENGTHS = (3, 7, 17, 30)
#: More than any of its lanes may have: only preloads compute these, whose figures nobody has published.
_BOUNDARY = (127, 128, 129)


@dataclass(frozen=True, slots=True)
class TinyCatalog:
    """The catalog in ``directory``; ``mirror`` holds each file at the path it has below a hub's address."""

    directory: Path

    @property
    def document(self) -> Path:
        """The document."""
        return self.directory / "catalog.json"

    @property
    def mirror(self) -> Path:
        """``<repository>/resolve/<revision>/<file>`` below this."""
        return self.directory / "mirror"

    @property
    def environment(self) -> dict[str, str]:
        """What makes a host serve it."""
        return {"SYNAPSE_TEST_CATALOG": str(self.document)}

    def catalog(self, switched_on: Sequence[str] = ()) -> Catalog:
        """Its entries as a host with these ``catalog.backends`` has them."""
        ids = (*CATALOG_BACKENDS, "reference", "cpu")
        return parse_catalog(self.document.read_bytes(), backend_ids=ids).with_backends(switched_on)

    def source(self, entry: CatalogEntry, path: str) -> Path:
        """One file of an entry."""
        return self.mirror / entry.upstream.hf_repo / "resolve" / entry.upstream.revision / path

    def install(self, home: Path, *catalog_ids: str, switched_on: Sequence[str] = ()) -> None:
        """Put the files of entries into the cache of the host at ``home``, which must not run, and note them there."""
        paths = resolve_paths({"SYNAPSE_HOME": str(home)})
        cache = BlobCache.open(paths.cache_dir / "models", "test")
        store = Store.open(paths.data_dir / "synapse.sqlite3")
        try:
            for catalog_id in catalog_ids:
                entry = self.catalog(switched_on).entry(catalog_id)
                assert entry is not None, catalog_id
                self._ingest(cache, entry)
                store.transact(partial(_save_install, entry))
        finally:
            store.close()

    def change(self, change: Mapping[str, Any], catalog_id: str, backend: str | None = None) -> None:
        """Rewrite members of an entry, or of its row for ``backend``, and leave every pin as it is."""
        document = json.loads(self.document.read_text("utf-8"))
        entry = next(entry for entry in document["entries"] if entry["id"] == catalog_id)
        row = next((row for row in entry["backends"] if row["backend"] == backend), entry)
        row.update(change)
        self.document.write_text(json.dumps(document), encoding="utf-8")

    def take_tokenizer(self, catalog_id: str, digest: str) -> None:
        """Put the identity of an entry's tokenizer into the document, and pins that fit."""
        self.change({"sanitized_tokenizer_sha256": digest}, catalog_id)
        self.document.write_text(_pinned(json.loads(self.document.read_text("utf-8"))), encoding="utf-8")

    def change_engine(self, backend: str, change: Mapping[str, Any]) -> None:
        """Rewrite what the document expects of an engine, and its pins to fit."""
        document = json.loads(self.document.read_text("utf-8"))
        document["engines"][backend].update(change)
        self.document.write_text(_pinned(document), encoding="utf-8")

    def change_figures(self, catalog_id: str) -> None:
        """Turn the figures an entry's lanes are checked against upside down."""
        path = self.document.with_name("fixtures.json")
        document = json.loads(path.read_text("utf-8"))
        entry = document["models"][catalog_id]
        for case in entry["cases"]:
            figures = np.frombuffer(base64.b64decode(case["expected"]), "<f4")
            case["expected"] = packed([float(figure) for figure in -figures])
        document["models"][catalog_id] = sealed(entry)
        path.write_text(json.dumps(document), encoding="utf-8")

    def copy(self, directory: Path) -> TinyCatalog:
        """A catalog of its own with the same content, for a test that changes it."""
        shutil.copytree(self.directory, directory)
        return TinyCatalog(directory)

    def _ingest(self, cache: BlobCache, entry: CatalogEntry) -> None:
        for file in entry.files:
            with cache.ingest() as ingest:
                ingest.write(self.source(entry, file.path).read_bytes())
                owner = install_owner("test", entry.id, entry.manifest_digest)
                ingest.commit(name=file.path, source_url="", owner=owner, expected_sha256=file.sha256)


def write_tiny_catalog(directory: Path) -> TinyCatalog:
    """Make the models, what they are checked against, and the document with fitting pins."""
    made = TinyCatalog(directory)
    engines = _engines()
    entries = [_entry(made, catalog_id, model) for catalog_id, model in _MODELS.items()]
    document = {"catalog_revision": 1, "engines": engines, "entries": entries}
    made.document.write_text(_pinned(document), encoding="utf-8")
    fixtures = {"revision": 1, "models": {name: _fixture(made, name, model) for name, model in _MODELS.items()}}
    made.document.with_name("fixtures.json").write_text(json.dumps(fixtures), encoding="utf-8")
    return made


def _pinned(document: Mapping[str, Any]) -> str:
    """The document with pins that fit."""
    text = json.dumps(document)
    for entry in parse_catalog(text.encode(), backend_ids=(*CATALOG_BACKENDS, "reference", "cpu")):
        for row in entry.backends:
            text = text.replace(row.fingerprint, computed_pin(entry, row))
    return text


def _engines() -> dict[str, Any]:
    from synapse_owned_cpu import plugin as cpu_plugin

    described = {"reference": reference_plugin.synapse_describe(), "cpu": cpu_plugin.synapse_describe()}
    planned = {"engine": "owned-metal", "version": "0.1.0", "build_flags": {}}
    unbuilt = {**planned, "kernel_revision": "planned", "manifest_digest": None}
    return {
        **{name: {**unbuilt, "engine": f"owned-{name}"} for name in CATALOG_BACKENDS},
        **{name: _engine(description) for name, description in described.items()},
    }


def _engine(description: BackendDescription) -> dict[str, Any]:
    return {
        "engine": description.engine,
        "version": description.engine_version,
        "build_flags": dict(description.build_flags),
        "kernel_revision": description.kernel_revision,
        "manifest_digest": description.manifest_digest,
    }


def _revision(catalog_id: str) -> str:
    return sha256_hex(catalog_id.encode())[:40]


def _folder(made: TinyCatalog, catalog_id: str) -> Path:
    return made.mirror / "tiny" / catalog_id / "resolve" / _revision(catalog_id)


def _entry(made: TinyCatalog, catalog_id: str, model: TinyModel) -> dict[str, Any]:
    folder, backends = _folder(made, catalog_id), _ROWS[catalog_id]
    config = write_model(folder, model)
    rerank = isinstance(model, TinyBertReranker)
    roles = {"model.safetensors": "model", "tokenizer.json": "tokenizer", "config.json": "config"}
    entry = {
        "id": catalog_id,
        "task": "rerank" if rerank else "embed",
        "name": catalog_id.replace("-", " ").title(),
        "description": f"A tiny model for tests, seeded {catalog_id}.",
        "default_for_task": catalog_id in (EMBED, RERANK),
        "upstream": {"hf_repo": f"tiny/{catalog_id}", "revision": _revision(catalog_id)},
        "family": "bert",
        "vocab_size": config["vocab_size"],
        "sanitized_tokenizer_sha256": None,
        "files": [_file(folder / name, role, backends) for name, role in roles.items()],
        "backends": [_row(catalog_id, backend, rerank, config["hidden_size"]) for backend in backends],
        "self_check": {"reference": catalog_id, "fixture_revision": 1},
    }
    return {**entry, "template": _TEMPLATE} if rerank else entry


def _file(path: Path, role: str, backends: Sequence[str]) -> dict[str, Any]:
    data = path.read_bytes()
    return {"path": path.name, "role": role, "sha256": sha256_hex(data), "size_bytes": len(data), "backends": backends}


def _row(catalog_id: str, backend: str, rerank: bool, hidden: int) -> dict[str, Any]:
    row = {
        "backend": backend,
        "shipped": backend in _SHIPPED,
        "dtype": "f32",
        "pooling": "cls",
        "normalize": not rerank,
        "dims": 1 if rerank else hidden,
        "max_tokens": MAX_TOKENS,
        "attention_units": MAX_TOKENS**2,
        "fingerprint": sha256_hex(f"{catalog_id}-{backend}".encode()),
    }
    return {**row, "rerank_abs_tolerance": 0.005} if rerank else row


def _fixture(made: TinyCatalog, catalog_id: str, model: TinyModel) -> dict[str, Any]:
    rerank = isinstance(model, TinyBertReranker)
    figures = _figures(_folder(made, catalog_id), rerank)
    names = ("short-0", *(f"pool10-00{place}" if rerank else f"short-{place + 1}" for place in range(3)))
    cases = [
        {"id": name, "ids": row, "expected": packed(expected)}
        for name, (row, expected) in zip(names, figures, strict=True)
    ]
    entry = {
        "hf_revision": _revision(catalog_id),
        "task": "rerank" if rerank else "embed",
        "cases": cases,
        "profile_rows": [
            {"id": f"boundary-{length}", "ids": [int(token) for token in row]}
            for length, row in zip(_BOUNDARY, seeded_rows(_BOUNDARY, 100, 8), strict=True)
        ],
    }
    return sealed(entry)


def _figures(folder: Path, rerank: bool) -> list[tuple[list[int], list[float]]]:
    """Rows of token ids and what the reference makes of them: a vector, or the probability of the raw score."""
    rows = seeded_rows(_LENGTHS, 100, 7)
    told = {"operation": "rerank", "pair_separator": "3"} if rerank else {}
    with loaded_model(reference_plugin, folder, max_tokens=MAX_TOKENS, runtime_config=told) as model:
        if rerank:
            scores = reference_plugin.synapse_rerank(model, rows, ignore_progress)
            found: Any = (1 / (1 + np.exp(-scores))).reshape(-1, 1)
        else:
            found = reference_plugin.synapse_embed(model, batch_of(rows, "cls"), ignore_progress)
    return [([int(token) for token in row], [float(x) for x in line]) for row, line in zip(rows, found, strict=True)]


def _save_install(entry: CatalogEntry, session: Session) -> None:
    key = {"catalog_id": entry.id, "manifest_digest": entry.manifest_digest}
    session.add(InstallRow(**key, valid=True, installed_ms=1))
    session.flush()
    for file in entry.files:
        session.add(InstallMemberRow(**key, role=file.role, name=file.path, sha256=file.sha256, size=file.size_bytes))


def spoil(path: Path) -> None:
    """Put zeros of the same length in the place of a file's content."""
    size = path.stat().st_size
    os.chmod(path, 0o600)  # noqa: PTH101
    path.write_bytes(bytes(size))
