"""What the doctor says of the model cache. What cannot be read is told, and everything else is looked at all the same.

Nothing is changed but damaged content, which is set aside where content is hashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.known_hosts import KnownHost, known_hosts
from synapse_host.cache.layout import CacheLayout, unusable
from synapse_host.cli.cache_commands import states_of
from synapse_host.cli.cache_hosts import said_of
from synapse_host.cli.finding import Finding
from synapse_host.cli.local_cache import id_of_home
from synapse_host.errors import StoreFailure
from synapse_host.settings import Settings
from synapse_host.store.upkeep import installed_files


def cache_findings(settings: Settings, *, hash_content: bool) -> Iterator[Finding]:
    """Every finding about the cache of these settings; the first says whether it can be used."""
    root = settings.model_cache
    if not (root.exists() or root.is_symlink()):
        yield Finding("model cache", True, f"no {root} yet")
        return
    cache = BlobCache(CacheLayout(root), "synapse-opctl")
    digests: list[str] = []
    try:
        cache.layout.prepare()
        digests = cache.layout.digests()
        seen = f"{root} holds {len(digests)} files, {_bytes_in(cache.layout.blobs)} bytes"
        yield Finding("model cache", True, seen)
    except (StoreFailure, OSError) as failure:
        yield _told(failure, "model cache", root)
        if not root.is_dir():
            return
    looks = {
        "incoming content": _incoming(cache.layout),
        "cache record": _records(cache, digests),
        "cached content": _content(cache, digests) if hash_content else iter(()),
        "installed models": _installed(settings, cache),
        "quarantine": _set_aside(cache.layout.quarantine),
        "host of the cache": _sharing(settings, cache),
    }
    for subject, look in looks.items():
        try:
            yield from look
        except (StoreFailure, OSError) as failure:
            yield _told(failure, subject, root)


def _told(failure: StoreFailure | OSError, subject: str, place: Path) -> Finding:
    """What could not be looked at, and why, and what to do."""
    told = unusable(place, failure) if isinstance(failure, OSError) else failure
    seen, _, remedy = told.message.rpartition("; ")
    return Finding(subject, False, seen, remedy)


def _incoming(layout: CacheLayout) -> Iterator[Finding]:
    layout.require_one_disk()
    yield from ()


def _records(cache: BlobCache, digests: list[str]) -> Iterator[Finding]:
    """One finding for every record that cannot be read: while it is there nothing is collected or removed."""
    for digest in digests:
        try:
            cache.find(digest)
        except StoreFailure as failure:
            yield _told(failure, "cache record", cache.layout.metadata)


def _content(cache: BlobCache, digests: list[str]) -> Iterator[Finding]:
    bad = [_said(digest, state) for digest, state in states_of(cache, digests) if state != "whole"]
    if bad:
        yield Finding("cached content", False, "; ".join(bad), "download the models they belong to again")
    else:
        yield Finding("cached content", True, f"{len(digests)} files are what their digests say")


def _said(digest: str, state: str) -> str:
    return f"{digest} is {state}" + (", and was set aside in quarantine just now" if state == "damaged" else "")


def _installed(settings: Settings, cache: BlobCache) -> Iterator[Finding]:
    files = installed_files(settings.paths.store_file)
    lost = [file for file in files if not _is_present(cache.path(file.sha256), file.size)]
    models = sorted({file.catalog_id for file in files})
    if lost:
        named = ", ".join(f"{file.name} of {file.catalog_id}" for file in lost)
        remedy = "; ".join(
            f"synapse-host models download {name}" for name in sorted({file.catalog_id for file in lost})
        )
        yield Finding("installed models", False, f"missing or of another size: {named}", remedy)
    elif models:
        yield Finding("installed models", True, f"every file of {', '.join(models)} is here")


def _is_present(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False  # also a link that leads nowhere, or round in a circle


def _set_aside(quarantine: Path) -> Iterator[Finding]:
    try:
        names = [path.name for path in quarantine.iterdir()]
    except FileNotFoundError:
        return
    if names:
        seen = f"{quarantine} holds {len(names)} damaged file{'s' if len(names) > 1 else ''}"
        yield Finding("quarantine", False, seen, "look at the disk, then remove them")


def _sharing(settings: Settings, cache: BlobCache) -> Iterator[Finding]:
    """The other hosts this cache keeps content for, and what to do about one that is no more."""
    try:
        own = id_of_home(settings.paths.data_dir)
    except StoreFailure:
        own = None  # told with the store
    try:
        found = known_hosts(cache.layout, id_of_home)
    except StoreFailure as failure:
        # Whatever else cannot be read was told before.
        if str(cache.layout.hosts) in failure.message:
            yield _told(failure, "cache record", cache.layout.hosts)
        return
    for known in found:
        if known.host != own and known.pinned_files:
            remedy = _remedy_of(known)
            yield Finding("host of the cache", known.state not in ("gone", "unknown"), said_of(known), remedy)


def _remedy_of(known: KnownHost) -> str | None:
    forget = f"synapse-opctl cache forget {known.host}"
    if known.state == "gone":
        return f"where it will not come back: {forget}; then synapse-opctl cache gc"
    if known.state == "unknown":
        return f"start that host once; where it is no more: {forget} --force, then synapse-opctl cache gc"
    if known.state == "elsewhere":
        return f"where it is no more: {forget} --force, then synapse-opctl cache gc"
    return None


def _bytes_in(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.iterdir())
