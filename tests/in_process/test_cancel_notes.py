"""Notes of cancelled jobs beside the store: kept where nothing new can be written, and told where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.store.cancel_notes import MOST_NOTES, NOTE_BYTES, CancelNotes
from synapse_host.testing.small_disk import fill, free_bytes, mounted, only_root

pytestmark = pytest.mark.anyio


async def test_what_is_noted_is_read_by_the_next_process_until_it_begins(tmp_path: Path) -> None:
    notes = CancelNotes(tmp_path / "notes")
    await notes.begin()
    assert await notes.add("embed-1-1")
    assert await notes.add("embed-1-2")
    assert await notes.add("embed-1-1"), "it is noted"
    assert await notes.add("embed-1-3")
    await notes.drop("embed-1-2")
    await notes.drop("never")
    following = CancelNotes(tmp_path / "notes")
    assert await following.read() == {"embed-1-1", "embed-1-3"}
    await following.begin()
    assert await following.read() == frozenset()


@only_root
async def test_a_note_takes_no_room_on_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path):
        notes = CancelNotes(tmp_path / "notes")
        await notes.begin()
        fill(tmp_path)
        assert free_bytes(tmp_path) == 0
        for number in range(MOST_NOTES):
            assert await notes.add(f"embed-1-{number}")
        assert not await notes.add("embed-1-one-more")
        assert len(await notes.read()) == MOST_NOTES
        # What was not taken before is not there now.
        other = CancelNotes(tmp_path / "other")
        await other.begin()
        assert not await other.add("embed-1-1")


async def test_a_note_that_cannot_be_written_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes").mkdir()
    notes = CancelNotes(tmp_path / "notes")
    await notes.begin()
    assert not await notes.add("embed-1-1")
    await notes.drop("embed-1-1")
    assert await notes.read() == frozenset()
    assert "directory" in caplog.text


async def test_bytes_that_no_host_wrote_are_no_job_and_can_be_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = CancelNotes(path)
    await notes.begin()
    await notes.add("embed-1-1")
    with path.open("r+b") as file:
        file.seek(NOTE_BYTES)
        file.write(b"\xff" * NOTE_BYTES)
    assert await notes.read() == {"embed-1-1"}
    assert await notes.add("embed-1-2")
    assert await notes.read() == {"embed-1-1", "embed-1-2"}
    assert not await notes.add("j" * (NOTE_BYTES + 1)), "too long for a note"
