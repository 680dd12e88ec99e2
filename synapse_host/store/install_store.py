"""Installs of catalog entries, and what cached files looked like when they were last hashed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, col, select

from synapse_host.store.database import Store
from synapse_host.store.download_tables import FileVerificationRow, InstallMemberRow, InstallRow

#: An install with its members.
StoredInstall = tuple[InstallRow, list[InstallMemberRow]]


class InstallStore:
    """Installs and verifications. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[StoredInstall]:
        """Every install with its members."""
        return await self._store.run(_all)

    async def invalidate(self, installs: Sequence[tuple[str, str]], sha256: str) -> None:
        """Mark installs, by entry and manifest, as damaged, and forget that the content was ever verified."""

        def write(session: Session) -> None:
            for key in installs:
                row = session.get(InstallRow, key)
                if row is not None:
                    row.valid = False
            verified = session.get(FileVerificationRow, sha256)
            if verified is not None:
                session.delete(verified)

        await self._store.run(write)

    async def verification(self, sha256: str) -> FileVerificationRow | None:
        """What the file of this content looked like when it was last hashed."""
        return await self._store.run(lambda session: session.get(FileVerificationRow, sha256))

    async def save_verification(self, row: FileVerificationRow) -> None:
        """Put one hashing's finding in the place of an earlier one."""

        def write(session: Session) -> None:
            session.merge(row)

        await self._store.run(write)


def _all(session: Session) -> list[StoredInstall]:
    members: dict[tuple[str, str], list[InstallMemberRow]] = {}
    for member in session.exec(select(InstallMemberRow).order_by(col(InstallMemberRow.name))):
        members.setdefault((member.catalog_id, member.manifest_digest), []).append(member)
    rows = session.exec(select(InstallRow).order_by(col(InstallRow.catalog_id), col(InstallRow.manifest_digest)))
    return [(row, members.get((row.catalog_id, row.manifest_digest), [])) for row in rows]
