"""What is to be downloaded: the files of one catalog entry, each with the size and digest it must have. Pure."""

from __future__ import annotations

from synapse_host.values import value_object


@value_object
class WantedFile:
    """One file. ``source`` is where it lies: an http(s) address, or a path below the endpoint and its mirror.

    The path of a hub file is ``<repo>/resolve/<revision>/<name>``. ``sha256`` is lowercase hex, ``size`` bytes; a size
    of None is one nobody knows beforehand.
    """

    role: str
    name: str
    sha256: str
    size: int | None
    source: str


@value_object
class Manifest:
    """The files of a catalog entry that backends runnable here need; ``manifest_digest`` pins the entry's content."""

    catalog_id: str
    manifest_digest: str
    files: tuple[WantedFile, ...]
