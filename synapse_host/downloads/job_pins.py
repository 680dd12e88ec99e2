"""The pins of downloads and installs in the cache, and what goes with them. Every call blocks on the disk."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from synapse_host.cache import pin_owners
from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.failures import artifact_invalid
from synapse_host.downloads.installs import Install, InstallMember, Installs
from synapse_host.downloads.manifest import Manifest, WantedFile
from synapse_host.errors import InvalidRequest

_log = logging.getLogger(__name__)


def pin_present(cache: BlobCache, job_id: str, wanted: WantedFile) -> bool:
    """Pin content of the right size that is here already; False where there is none."""
    found = cache.find(wanted.sha256)
    if found is None or wanted.size not in (None, _size(cache, wanted.sha256)):
        return False
    try:
        cache.pin(wanted.sha256, pin_owners.reuse_owner(cache.owner, job_id))
    except InvalidRequest:
        return False  # another host removed it a moment ago
    return True


def pin_install(cache: BlobCache, manifest: Manifest) -> list[InstallMember]:
    """Pin every file of a manifest for its install; its members.

    Raises:
        ArtifactInvalid: content is gone, as when another host found it damaged a moment ago.
        StoreFailure: the cache cannot be written.

    """
    owner = pin_owners.install_owner(cache.owner, manifest.catalog_id, manifest.manifest_digest)
    return [_pinned_member(cache, file, owner) for file in manifest.files]


def _pinned_member(cache: BlobCache, file: WantedFile, owner: str) -> InstallMember:
    try:
        return InstallMember(file.role, file.name, file.sha256, cache.pin(file.sha256, owner).size)
    except InvalidRequest as gone:
        raise artifact_invalid(
            file.name, expected_sha256=file.sha256, actual_sha256=None, expected_size=file.size, actual_size=None
        ) from gone


def release_install(cache: BlobCache, install: Install, *, keep: Collection[str] = ()) -> int:
    """Take the pins of an install back and remove what nobody else needs, but for ``keep``; the freed bytes."""
    owner = pin_owners.install_owner(cache.owner, install.catalog_id, install.manifest_digest)
    digests = {member.sha256 for member in install.members.values()} - set(keep)
    return sum(cache.release(digest, owner, remove=True) for digest in sorted(digests))


def release_job(cache: BlobCache, job_id: str, digests: Iterable[str], *, remove: bool) -> None:
    """Take the pins of a job back; with ``remove``, what it brought and nobody else needs goes."""
    for digest in dict.fromkeys(digests):
        cache.release(digest, pin_owners.download_owner(cache.owner, job_id), remove=remove)
        cache.release(digest, pin_owners.reuse_owner(cache.owner, job_id), remove=False)


def repin(cache: BlobCache, installs: Installs, models: Collection[str] | None) -> None:
    """Make this host's pins what its store says, at boot, when no job runs; what a death left half written goes too.

    ``models`` are the registered models; None leaves their pins alone.
    """
    cache.sweep()
    wanted = _install_pins(cache, installs.all())
    for digest, owner in cache.pins():
        purpose = pin_owners.purpose_of(owner, cache.owner)
        if purpose is None or (digest, owner) in wanted or purpose.kind == pin_owners.OPERATOR:
            continue
        if purpose.kind == pin_owners.MODEL and (models is None or purpose.name in models):
            continue
        freed = cache.release(digest, owner, remove=purpose.kind != pin_owners.REUSE)
        _log.info("took the pin %s of content %s back, %d bytes freed", owner, digest, freed)
    for digest, owner in sorted(wanted - set(cache.pins())):
        if cache.find(digest) is not None:
            cache.pin(digest, owner)


def _install_pins(cache: BlobCache, installs: Sequence[Install]) -> set[tuple[str, str]]:
    return {
        (member.sha256, pin_owners.install_owner(cache.owner, install.catalog_id, install.manifest_digest))
        for install in installs
        for member in install.members.values()
    }


def _size(cache: BlobCache, digest: str) -> int | None:
    path = cache.path(digest)
    return path.stat().st_size if path.exists() else None
