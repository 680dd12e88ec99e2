from __future__ import annotations

import os
from pathlib import Path

import pytest

from synapse_host.cli.passages import UnreadableFile, read_passages

LONG = "A sentence that is long enough to be an answer to somebody."


def test_a_directory_gives_its_text_files_by_name_and_hidden_ones_never(tmp_path: Path) -> None:
    for name in ("b.md", "a/deep.txt", "c.rst", "code.py", ".venv/lib.md", ".hidden.md"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(LONG)
    found = [os.path.relpath(passage.file, tmp_path) for passage in read_passages([tmp_path], pytest.fail)]
    assert found == ["a/deep.txt", "b.md", "c.rst"]


def test_a_directory_below_a_hidden_one_may_be_named_itself(tmp_path: Path) -> None:
    notes = tmp_path / ".notes"
    notes.mkdir()
    (notes / "a.md").write_text(LONG)
    assert len(read_passages([notes], pytest.fail)) == 1


def test_a_named_file_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "NOTES"
    file.write_text(LONG)
    assert [passage.file for passage in read_passages([file], pytest.fail)] == [str(file)]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(b"abc\xff")
    with pytest.raises(UnreadableFile, match=r"a\.md is not UTF-8 text \(byte 3\)"):
        read_passages([file], pytest.fail)


def test_a_file_found_below_a_directory_is_skipped_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"abc\xff")
    (tmp_path / "b.md").write_text(LONG)
    skipped: list[UnreadableFile] = []
    assert [os.path.relpath(passage.file, tmp_path) for passage in read_passages([tmp_path], skipped.append)] == [
        "b.md"
    ]
    assert ["a.md is not UTF-8" in str(problem) for problem in skipped] == [True]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"missing\.md cannot be read \(No such file"):
        read_passages([tmp_path / "missing.md"], pytest.fail)
