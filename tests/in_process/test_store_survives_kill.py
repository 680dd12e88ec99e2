"""A process killed while it writes leaves a store that opens, with whole transactions only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sqlmodel import Session, col, select

from synapse_host.store.database import Store
from synapse_host.store.tables import CertificationRow, PerformanceRow

#: Writes a certification and its performance in one transaction, says so when it is committed, and goes on for ever.
WRITER = """
import sys
from pathlib import Path
from synapse_host.store.database import Store
from synapse_host.store.tables import CertificationRow, PerformanceRow

store = Store.open(Path(sys.argv[1]))
number = int(sys.argv[2])
while True:
    number += 1
    key = {"machine_profile_hash": "a" * 64, "fingerprint": f"{number:064d}", "model_id": str(number)}
    certification = CertificationRow(
        **key, status="certified", os_build="x", module_generation=1, measured_at_ms=number, evidence_json="e" * 20000
    )
    performance = PerformanceRow(
        **key, throughput_tok_s=1.0, cold_load_ms=1, single_item_latency_p50_ms=1.0, measured_at_ms=number,
        module_generation=1,
    )
    def write(session):
        session.add(certification)
        session.flush()
        session.add(performance)
    store.transact(write)
    print(number, flush=True)
"""


def write_until_killed(path: Path, *, first: int, after: int) -> int:
    """Run the writer, kill it once it has told of ``after`` commits, and return the last it told of."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdout is not None
    with child.stdout:
        told = [int(child.stdout.readline()) for _ in range(after)]
        child.kill()
        told += [int(line) for line in child.stdout if line.endswith("\n")]
    assert child.wait() == -9
    return told[-1]


def _integrity(session: Session) -> str:
    return str(session.connection().exec_driver_sql("PRAGMA integrity_check").scalar_one())


def _numbers(session: Session, row: type[CertificationRow] | type[PerformanceRow]) -> list[int]:
    return sorted(int(name) for name in session.exec(select(col(row.model_id))))


def test_a_killed_writer_leaves_only_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "synapse.db"
    last = 0
    for after in (1, 7, 40):
        told = write_until_killed(path, first=last, after=after)
        store = Store.open(path)
        assert store.transact(_integrity) == "ok"
        certified = store.transact(lambda session: _numbers(session, CertificationRow))
        measured = store.transact(lambda session: _numbers(session, PerformanceRow))
        store.close()
        assert certified == measured
        # The one being written when the signal came may have been committed before it was told of.
        assert certified in (list(range(1, told + 1)), list(range(1, told + 2)))
        last = certified[-1]
