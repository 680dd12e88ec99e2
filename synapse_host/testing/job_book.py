"""The book of durable jobs over a real store, with a clock of the test's own and no lane."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from sqlmodel import Session

from synapse_host.jobs.clocks import ClockLengths
from synapse_host.jobs.counters import JobCounters
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.pages import Page, PageBuilder
from synapse_host.jobs.request_digest import request_digest
from synapse_host.jobs.spool import SpooledItems
from synapse_host.jobs.submission import Submission
from synapse_host.store import job_store
from synapse_host.store.database import Store
from synapse_host.store.job_tables import JobRow
from synapse_host.tokenization.model_tokenizer import EncodedText

LENGTHS = ClockLengths(execution_ms=1000, retention_ms=500, resume_ms=300)
DAY_MS = 1_000_000


class Book:
    """A ledger with a clock of the test's; ``reboot`` is the next process on the same store."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = Store.open(path)
        self.now = DAY_MS
        self.generation = 0
        self.options = {"lengths": LENGTHS, **options}
        self.reboot()

    def reboot(self) -> None:
        """Go on as the next process."""
        self.generation += 1
        self.ledger = JobLedger(
            self.store,
            JobCounters(),
            module_generation=self.generation,
            now_ms=lambda: self.now,
            **self.options,
        )

    def open_rows(self) -> int:
        """How many jobs are open in the store."""
        return self.store.look(lambda session: sum(job_store.open_by_state(session).values()))

    def texts_kept(self, job: JobRow) -> list[int]:
        """Ordinals of the texts that wait in the store for a job."""

        def look(session: Session) -> list[int]:
            found: list[int] = []
            while (chunk := job_store.input_chunk(session, key(job), len(found) and 1)) is not None and not found:
                found = SpooledItems.read(chunk).ordinals
            return sorted(found)

        return self.store.look(look)


def key(job: JobRow) -> int:
    """The key of a stored job."""
    assert job.job_pk is not None
    return job.job_pk


def submission(name: str = "k", texts: tuple[str, ...] = ("a", "bb", "ccc"), **changes: Any) -> Submission:
    """A batch under the key ``name``, with ``changes`` to its fields."""
    ids = [f"id-{at}" for at in range(len(texts))]
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    digest = request_digest("embed.batch", "m", {}, ids, hashes)
    facts: dict[str, Any] = {
        "request_key": name,
        "request_digest": digest,
        "model_id": "m",
        "fingerprint": "f" * 64,
        "identity": {"fingerprint": "f" * 64},
        "item_ids": ids,
        "texts": list(texts),
    }
    return Submission(**{**facts, **changes})


def page(*ordinals: int) -> Page:
    """A page with a vector of one number for each of ``ordinals``."""
    builder = PageBuilder(1)
    for ordinal in ordinals:
        row = EncodedText([1], 1, 1, False, "0" * 64, "0" * 64)
        builder.add([ordinal], [f"id-{ordinal}"], [row], struct.pack("<f", ordinal + 1))
    return builder.page()
