"""What checks at load found, by the digest of their key."""

from __future__ import annotations

from sqlmodel import Session, col, delete, select

from synapse_host.store.database import Store
from synapse_host.store.tables import SelfCheckTableRow


class SelfCheckStore:
    """Decided checks. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def save(self, row: SelfCheckTableRow) -> None:
        """Put a finding in the place of an earlier one of the same key."""

        def write(session: Session) -> None:
            session.merge(row)

        await self._store.run(write)

    async def get(self, check_id: str) -> SelfCheckTableRow | None:
        """What was found for a key, if it was decided."""
        return await self._store.run(lambda session: session.get(SelfCheckTableRow, check_id))

    async def all(self) -> list[SelfCheckTableRow]:
        """Every finding, by catalog id, backend and time."""
        table = SelfCheckTableRow
        statement = select(table).order_by(col(table.catalog_id), col(table.backend), col(table.checked_at_ms))
        return await self._store.run(lambda session: list(session.exec(statement)))

    async def forget(self, catalog_id: str) -> int:
        """Drop every finding of a model that is removed; returns how many there were."""
        statement = delete(SelfCheckTableRow).where(col(SelfCheckTableRow.catalog_id) == catalog_id)
        return await self._store.run(lambda session: session.exec(statement).rowcount)
