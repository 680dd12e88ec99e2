"""The host's own two counters, which boot this is and which version of the alias table holds, and its name."""

from __future__ import annotations

from sqlmodel import Session

from synapse_host.store.database import Store
from synapse_host.store.tables import ModuleMetaRow


class ModuleStore:
    """Reads and moves the counters. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin_generation(self) -> int:
        """Count a boot; returns the generation this host serves under, from 1."""

        def bump(session: Session) -> int:
            meta = _meta(session)
            meta.module_generation += 1
            return meta.module_generation

        return await self._store.run(bump)

    async def module_generation(self) -> int:
        """The generation of the last boot; 0 before the first."""
        return await self._store.run(lambda session: _meta(session).module_generation)

    async def table_epoch(self) -> int:
        """The version of the alias table."""
        return await self._store.run(lambda session: _meta(session).table_epoch)

    async def host_id(self) -> str:
        """The name under which this host pins content of a cache it may share; it moves with the store's file."""
        return await self._store.run(lambda session: _meta(session).host_id)

    async def take_host_id(self, host_id: str) -> None:
        """Be another host from now on: this store is a copy, and its original goes by the old name."""

        def write(session: Session) -> None:
            _meta(session).host_id = host_id

        await self._store.run(write)


def _meta(session: Session) -> ModuleMetaRow:
    return session.get_one(ModuleMetaRow, 1)
