"""What probes found, by machine profile and fingerprint (wire contract section 5)."""

from __future__ import annotations

from sqlmodel import Session, col, delete, select

from synapse_host.store.database import Store
from synapse_host.store.tables import CertificationRow, PerformanceRow


class CertificationStore:
    """Certification and performance rows. Every method raises ``StoreFailure`` when the store cannot do it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def save(self, certification: CertificationRow, performance: PerformanceRow | None) -> None:
        """Put one probe's findings in the place of earlier ones, both rows in one transaction.

        Without ``performance`` an earlier performance row goes too: it was measured for a certification that is gone.

        Raises:
            ValueError: the two rows are of different lanes or machines.

        """
        key = _key(certification)
        if performance is not None and _key(performance) != key:
            raise ValueError(f"performance row {_key(performance)} does not belong to certification row {key}")

        def write(session: Session) -> None:
            session.merge(certification)
            session.flush()
            if performance is None:
                _delete_performance(session, *key)
            else:
                session.merge(performance)

        await self._store.run(write)

    async def get(self, machine_profile_hash: str, fingerprint: str) -> CertificationRow | None:
        """What the last probe of this lane on this machine found, if there was one."""
        return await self._store.run(lambda session: session.get(CertificationRow, (machine_profile_hash, fingerprint)))

    async def performance(self, machine_profile_hash: str, fingerprint: str) -> PerformanceRow | None:
        """How fast the last probe of this lane on this machine found it, if it got that far."""
        return await self._store.run(lambda session: session.get(PerformanceRow, (machine_profile_hash, fingerprint)))

    async def measured_elsewhere(self, machine_profile_hash: str, fingerprint: str) -> bool:
        """Whether this lane was probed on another profile of a machine than this."""
        statement = select(CertificationRow.machine_profile_hash).where(
            col(CertificationRow.fingerprint) == fingerprint,
            col(CertificationRow.machine_profile_hash) != machine_profile_hash,
        )
        return await self._store.run(lambda session: session.exec(statement).first() is not None)

    async def all(self, machine_profile_hash: str) -> list[CertificationRow]:
        """Every certification of a machine, by model and fingerprint."""
        statement = (
            select(CertificationRow)
            .where(col(CertificationRow.machine_profile_hash) == machine_profile_hash)
            .order_by(col(CertificationRow.model_id), col(CertificationRow.fingerprint))
        )
        return await self._store.run(lambda session: list(session.exec(statement)))

    async def all_performance(self, machine_profile_hash: str) -> list[PerformanceRow]:
        """Every performance row of a machine, by model and fingerprint."""
        statement = (
            select(PerformanceRow)
            .where(col(PerformanceRow.machine_profile_hash) == machine_profile_hash)
            .order_by(col(PerformanceRow.model_id), col(PerformanceRow.fingerprint))
        )
        return await self._store.run(lambda session: list(session.exec(statement)))


def _key(row: CertificationRow | PerformanceRow) -> tuple[str, str]:
    return row.machine_profile_hash, row.fingerprint


def _delete_performance(session: Session, machine_profile_hash: str, fingerprint: str) -> None:
    session.exec(
        delete(PerformanceRow).where(
            col(PerformanceRow.machine_profile_hash) == machine_profile_hash,
            col(PerformanceRow.fingerprint) == fingerprint,
        )
    )
