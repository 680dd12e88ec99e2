"""Declared equivalences of numeric identities, and the version of their table, in one transaction each."""

from __future__ import annotations

from sqlmodel import Field, Session, SQLModel, col, select

from synapse_host.store.database import Store
from synapse_host.store.tables import ModuleMetaRow


class AliasRow(SQLModel, table=True):
    """A pair in lexical order; ``valid_to_ms`` is None while it holds. Rows are never deleted."""

    __tablename__ = "alias_rows"

    alias_pk: int | None = Field(default=None, primary_key=True)
    fingerprint_a: str
    fingerprint_b: str
    valid_from_ms: int
    valid_to_ms: int | None = None
    evidence_json: str = "{}"
    retraction_json: str = "{}"


#: The version of the table and all of its rows, oldest first.
AliasRows = tuple[int, list[AliasRow]]


class AliasStore:
    """The alias table. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> AliasRows:
        """What there is."""
        return await self._store.run(_everything)

    async def declare(self, pair: tuple[str, str], evidence_json: str, now_ms: int) -> tuple[bool, AliasRows]:
        """Let a pair hold; False and nothing written where it does."""

        def write(session: Session) -> tuple[bool, AliasRows]:
            if _live(session, pair) is not None:
                return False, _everything(session)
            session.add(
                AliasRow(
                    fingerprint_a=pair[0], fingerprint_b=pair[1], valid_from_ms=now_ms, evidence_json=evidence_json
                )
            )
            return True, _advanced(session)

        return await self._store.run(write)

    async def retract(self, pair: tuple[str, str], evidence_json: str, now_ms: int) -> tuple[bool, AliasRows]:
        """Let a pair hold no more; False and nothing written where it does not."""

        def write(session: Session) -> tuple[bool, AliasRows]:
            row = _live(session, pair)
            if row is None:
                return False, _everything(session)
            # The clock of the machine may have been put back.
            row.valid_to_ms = max(now_ms, row.valid_from_ms)
            row.retraction_json = evidence_json
            return True, _advanced(session)

        return await self._store.run(write)


def _live(session: Session, pair: tuple[str, str]) -> AliasRow | None:
    statement = select(AliasRow).where(
        col(AliasRow.fingerprint_a) == pair[0],
        col(AliasRow.fingerprint_b) == pair[1],
        col(AliasRow.valid_to_ms).is_(None),
    )
    return session.exec(statement).first()


def _advanced(session: Session) -> AliasRows:
    session.get_one(ModuleMetaRow, 1).table_epoch += 1
    session.flush()
    return _everything(session)


def _everything(session: Session) -> AliasRows:
    epoch = session.get_one(ModuleMetaRow, 1).table_epoch
    return epoch, list(session.exec(select(AliasRow).order_by(col(AliasRow.alias_pk))))
