"""Installs in the store: a row and its members, and back."""

from __future__ import annotations

from synapse_host.downloads.installs import Install, InstallMember
from synapse_host.store.install_store import StoredInstall


def install_of(stored: StoredInstall) -> Install:
    """The install a row and its members keep."""
    row, members = stored
    files = {member.name: InstallMember(member.role, member.name, member.sha256, member.size) for member in members}
    return Install(row.catalog_id, row.manifest_digest, files, row.valid, row.installed_ms)
