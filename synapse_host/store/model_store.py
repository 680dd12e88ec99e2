"""The models operators loaded, kept across restarts."""

from __future__ import annotations

from sqlmodel import Session, col, select

from synapse_host.store.database import Store
from synapse_host.store.tables import ModelRow


class ModelStore:
    """Registered models by id. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def save(self, row: ModelRow) -> None:
        """Add a model, or replace the one of the same id."""

        def write(session: Session) -> None:
            session.merge(row)

        await self._store.run(write)

    async def get(self, model_id: str) -> ModelRow | None:
        """The model of this id, if it is registered."""
        return await self._store.run(lambda session: session.get(ModelRow, model_id))

    async def all(self) -> list[ModelRow]:
        """Every registered model, by id."""
        return await self._store.run(
            lambda session: list(session.exec(select(ModelRow).order_by(col(ModelRow.model_id))))
        )

    async def delete(self, model_id: str) -> bool:
        """Forget a model; False when there was none. Its certifications stay: they belong to the fingerprint."""

        def remove(session: Session) -> bool:
            row = session.get(ModelRow, model_id)
            if row is not None:
                session.delete(row)
            return row is not None

        return await self._store.run(remove)
