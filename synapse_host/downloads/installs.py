"""Which catalog entries are installed. What the store holds, mirrored in memory so that serving never waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from synapse_host.values import value_object


@value_object
class InstallMember:
    """One file of an install: its content lies in the model cache under ``sha256``."""

    role: str
    name: str
    sha256: str
    size: int


@value_object
class Install:
    """The files of one manifest of a catalog entry, by name: backends may want different files of one role.

    ``valid`` is false once one of them was found missing or damaged: such an install serves nothing until
    ``models.download`` repairs it. An install whose digest is not the entry's current one is stale.
    """

    catalog_id: str
    manifest_digest: str
    members: Mapping[str, InstallMember]
    valid: bool = True
    installed_ms: int = 0


class Installs:
    """Every install of this host. Lookups are plain calls; the downloads room alone changes it."""

    def __init__(self, installs: Iterable[Install] = ()) -> None:
        self._installs = {(install.catalog_id, install.manifest_digest): install for install in installs}

    def current(self, catalog_id: str, manifest_digest: str) -> Install | None:
        """The install of exactly this manifest, valid or not; None where it was never committed or was removed."""
        return self._installs.get((catalog_id, manifest_digest))

    def of(self, catalog_id: str) -> list[Install]:
        """Every install of an entry, current and stale, oldest first."""
        found = [install for install in self._installs.values() if install.catalog_id == catalog_id]
        return sorted(found, key=lambda install: (install.installed_ms, install.manifest_digest))

    def all(self) -> list[Install]:
        """Every install."""
        return list(self._installs.values())

    def put(self, install: Install) -> None:
        """Add an install, or replace the one of its manifest."""
        self._installs[install.catalog_id, install.manifest_digest] = install

    def withdraw(self, catalog_id: str) -> list[Install]:
        """Forget every install of an entry; what was forgotten."""
        gone = self.of(catalog_id)
        for install in gone:
            del self._installs[install.catalog_id, install.manifest_digest]
        return gone

    def invalidate(self, sha256: str) -> list[Install]:
        """Mark every install with a member of this content as damaged; those that were not before."""
        hit = [
            install
            for install in self._installs.values()
            if install.valid and any(member.sha256 == sha256 for member in install.members.values())
        ]
        for install in hit:
            self.put(replace(install, valid=False))
        return hit
