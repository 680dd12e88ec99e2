"""Which jobs are wanted no more, while the store cannot be written: a file of fixed size beside it.

A full disk takes nothing new, not even a deletion, for that is a new page of the journal. It does take other bytes in
place of those a file has. So room is made while there is some, and a note overwrites a part of it. A file system that
writes every change to a new place may refuse that too; then nothing is noted, and whoever asked is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

_log = logging.getLogger(__name__)
#: The file's name, beside the store.
CANCEL_NOTES = "cancelled-jobs"
#: Bytes of one note, and how many there is room for: as many jobs can be cancelled before there is room on the disk.
NOTE_BYTES = 64
MOST_NOTES = 256
_FREE = bytes(NOTE_BYTES)
T = TypeVar("T")


class CancelNotes:
    """The notes at ``path``. They come from the last process alone: ``begin`` makes room for this one's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def read(self) -> frozenset[str]:
        """The jobs that are noted."""
        return await self._run(lambda file: frozenset(_notes(file).values()), frozenset())

    async def begin(self) -> None:
        """Take room for notes, and forget those there are."""
        await self._run(_begin, None)

    async def add(self, job_id: str) -> bool:
        """Note a job; whether the note is on the disk now."""
        return await self._run(lambda file: _add(file, job_id), False)

    async def drop(self, job_id: str) -> None:
        """Forget the note of a job that the store says is cancelled."""
        await self._run(lambda file: _drop(file, job_id), None)

    async def _run(self, work: Callable[[int], T], otherwise: T) -> T:
        return await anyio.to_thread.run_sync(self._with_file, work, otherwise, limiter=self._one_at_a_time)

    def _with_file(self, work: Callable[[int], T], otherwise: T) -> T:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return work(file)
            finally:
                os.close(file)
        except OSError as fault:
            _log.warning("%s cannot be used for notes of cancelled jobs: %s", self._path, fault.strerror)
            return otherwise


def _notes(file: int) -> dict[int, str]:
    """Place -> job. What is no text of ASCII was never written by ``_add``."""
    whole = os.pread(file, NOTE_BYTES * MOST_NOTES, 0)
    found = {at: whole[at : at + NOTE_BYTES].rstrip(b"\0") for at in range(0, len(whole), NOTE_BYTES)}
    return {at: note.decode() for at, note in found.items() if note and note.isascii()}


def _begin(file: int) -> None:
    if os.fstat(file).st_size < NOTE_BYTES * MOST_NOTES or _notes(file):
        # Real bytes: a hole in a file is room that nobody has taken.
        os.pwrite(file, _FREE * MOST_NOTES, 0)
        os.fsync(file)


def _add(file: int, job_id: str) -> bool:
    notes = _notes(file)
    if job_id in notes.values():
        return True
    last = os.fstat(file).st_size - NOTE_BYTES
    free = next((at for at in range(0, last + 1, NOTE_BYTES) if at not in notes), None)
    note = job_id.encode()
    if free is None or len(note) > NOTE_BYTES:
        return False
    os.pwrite(file, note.ljust(NOTE_BYTES, b"\0"), free)
    os.fsync(file)
    return True


def _drop(file: int, job_id: str) -> None:
    for at, noted in _notes(file).items():
        if noted == job_id:
            os.pwrite(file, _FREE, at)
