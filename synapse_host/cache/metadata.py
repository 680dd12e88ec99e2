"""What the cache knows of a blob beside its bytes: one JSON document per digest."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from synapse_host.cache.durable_files import write_durably
from synapse_host.cache.layout import CacheLayout
from synapse_host.errors import StoreFailure
from synapse_host.values import value_object

#: Written into each document; another number is another layout.
_VERSION = 1


@value_object
class Tombstone:
    """A mark that the blob is to go: when it was set, in milliseconds of the epoch, and by which owner."""

    marked_ms: int
    marked_by: str


@value_object
class BlobMetadata:
    """One blob. ``pins`` names the owners that want it kept, sorted and each once; ``size`` is in bytes."""

    digest: str
    size: int
    source_url: str
    format: str = "unknown"
    sanitized_tokenizer_digest: str | None = None
    valid: bool = True
    pins: tuple[str, ...] = ()
    tombstone: Tombstone | None = None

    def pinned_by(self, owner: str) -> BlobMetadata:
        """With a pin of ``owner``, and no longer marked to go."""
        return replace(self, pins=tuple(sorted({*self.pins, owner})), tombstone=None)

    def unpinned_by(self, owner: str) -> BlobMetadata:
        """Without the pin of ``owner``; the pins of others stay."""
        return replace(self, pins=tuple(pin for pin in self.pins if pin != owner))

    def to_json(self) -> bytes:
        """The document."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> BlobMetadata:
        """Read a document; raises ``ValueError`` for anything ``to_json`` would not write."""
        try:
            fields: Any = json.loads(data)
        except RecursionError as deep:
            raise ValueError("is nested too deep") from deep
        if not isinstance(fields, dict) or fields.pop("version", None) != _VERSION:
            raise ValueError(f"is no document of version {_VERSION}")
        try:
            stone = fields["tombstone"]
            found = cls(**{**fields, "pins": tuple(fields["pins"]), "tombstone": Tombstone(**stone) if stone else None})
        except (TypeError, KeyError) as wrong:
            raise ValueError(f"has other fields than expected: {wrong}") from wrong
        if wrong_field := _wrong_field(found):
            raise ValueError(f"has {getattr(found, wrong_field)!r:.80} for its {wrong_field}")
        if found.to_json() != data:
            raise ValueError("is not written as this host writes it")
        return found


def _wrong_field(found: BlobMetadata) -> str | None:
    """The first field that holds what no host writes: a dataclass does not look at what it is given."""
    stone = found.tombstone
    right = {
        "digest": _is_text(found.digest),
        "size": _is_count(found.size),
        "source_url": _is_text(found.source_url),
        "format": _is_text(found.format),
        "sanitized_tokenizer_digest": found.sanitized_tokenizer_digest is None
        or _is_text(found.sanitized_tokenizer_digest),
        "valid": type(found.valid) is bool,
        "pins": all(map(_is_text, found.pins)),
        "tombstone": stone is None or (_is_count(stone.marked_ms) and _is_text(stone.marked_by)),
    }
    return next((name for name, is_right in right.items() if not is_right), None)


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: object) -> bool:
    """Whether it is a number of bytes or milliseconds that SQLite and the disk can hold."""
    return type(value) is int and 0 <= value < 2**63


def read_metadata(layout: CacheLayout, digest: str) -> BlobMetadata | None:
    """The document of ``digest``; None where there is none.

    Raises:
        StoreFailure: it cannot be read, or is about something else.

    """
    path = layout.metadata_file(digest)
    try:
        found = BlobMetadata.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise StoreFailure(f"{path}: {problem}; remove the file, then download or load its model again") from problem
    if found.digest != digest:
        raise StoreFailure(f"{path} is about {found.digest}; remove the file, then download or load its model again")
    return found


def write_metadata(layout: CacheLayout, metadata: BlobMetadata) -> None:
    """Replace the document of a blob, durably; the caller holds the change lock."""
    write_durably(layout.metadata_file(metadata.digest), metadata.to_json())
