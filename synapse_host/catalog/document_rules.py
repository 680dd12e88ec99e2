"""The rules a catalog document keeps beyond the types of its fields (original facts, section 6). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from synapse_host.catalog.entries import CatalogBackend, CatalogEntry
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.tokenization.pair_template import PairTemplate


def document_faults(entries: Sequence[CatalogEntry], backend_ids: Collection[str]) -> list[str]:
    """Every rule that is broken, as a sentence; an empty list is a sound document."""
    faults = [*_ids(entries, backend_ids), *_defaults(entries)]
    for entry in entries:
        faults += [f"entry {entry.id!r} {fault}" for fault in _entry(entry, backend_ids)]
    return faults


def _ids(entries: Sequence[CatalogEntry], backend_ids: Collection[str]) -> Iterator[str]:
    ids = [entry.id for entry in entries]
    yield from (f"id {name!r} is given {times} times" for name, times in Counter(ids).items() if times > 1)
    reserved = {f"{name}-{backend}": name for name in ids for backend in backend_ids}
    yield from (f"id {name!r} is reserved for a lane of {reserved[name]!r}" for name in ids if name in reserved)
    pins = Counter(row.fingerprint for entry in entries for row in entry.backends)
    yield from (f"fingerprint {pin} pins {times} rows" for pin, times in pins.items() if times > 1)


def _defaults(entries: Sequence[CatalogEntry]) -> Iterator[str]:
    defaults = Counter(entry.task for entry in entries if entry.default_for_task)
    for task in sorted({entry.task for entry in entries}):
        if defaults[task] != 1:
            yield f"task {task!r} has {defaults[task]} default entries and must have one"


def _entry(entry: CatalogEntry, backend_ids: Collection[str]) -> Iterator[str]:
    if entry.task == "embed" and "rerank" in entry.id:
        yield "is for embed and its id says rerank"
    if (entry.template is None) != (entry.task == "embed"):
        yield f"is for {entry.task} and has {'no' if entry.template is None else 'a'} template"
    elif entry.template is not None and not _is_template(entry.template):
        yield f"has a template that composes no pairs: {dict(entry.template)!r:.200}"
    declared = [row.backend for row in entry.backends]
    yield from (f"declares {name!r} {times} times" for name, times in Counter(declared).items() if times > 1)
    strange = [name for name in declared if name not in backend_ids]
    yield from (f"declares backend {name!r}, not one of {list(backend_ids)}" for name in strange)
    yield from _files(entry, declared)
    for row in entry.backends:
        yield from (f"on {row.backend!r} {fault}" for fault in _row(entry, row))


def _is_template(members: Mapping[str, str | int]) -> bool:
    """Whether these are the members of a template in the one form that goes into a pin."""
    text = canonical_json(members).decode()
    try:
        return PairTemplate.from_json(text).to_json() == text
    except TypeError:
        return False


def _files(entry: CatalogEntry, declared: Sequence[str]) -> Iterator[str]:
    paths = Counter(file.path for file in entry.files)
    yield from (f"names file {path!r} {times} times" for path, times in paths.items() if times > 1)
    sizes = {(file.sha256, file.size_bytes) for file in entry.files}
    doubled = Counter(sha256 for sha256, _ in sizes)
    yield from (f"names {sha256} as content of two sizes" for sha256, times in doubled.items() if times > 1)
    for file in entry.files:
        strange = sorted(set(file.backends) - set(declared))
        if strange or not file.backends:
            yield f"keeps file {file.path!r} for {strange or 'no backend'}; name declared backends"


def _row(entry: CatalogEntry, row: CatalogBackend) -> Iterator[str]:
    roles = Counter(file.role for file in entry.files_of([row.backend]))
    if roles["model"] != 1 or roles["tokenizer"] != 1 or roles["config"] > 1:
        yield f"needs one model, one tokenizer and at most one config, and has {dict(roles)}"
    if row.attention_units < row.max_tokens**2:
        yield f"has attention_units {row.attention_units}, fewer than max_tokens {row.max_tokens} squared"
    if entry.task == "embed" and not row.normalize:
        yield "does not normalize, and every catalog vector is of length 1"
    if row.pooling == "mean":
        yield "pools by mean, and catalog models pool by cls or last"
    if (row.rerank_abs_tolerance is None) != (entry.task == "embed"):
        yield f"is for {entry.task} and its rerank_abs_tolerance is {row.rerank_abs_tolerance}"
