"""Ids of items from files: what is taken for one, and a field of ids that is nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from synapse_host.cli.file_items import ItemSource, survey
from synapse_host.cli.passages import UnreadableFile
from synapse_host.cli.user_commands import app


def source_of(tmp_path: Path, name: str, content: str, **fields: str) -> ItemSource:
    (path := tmp_path / name).write_text(content, encoding="utf-8")
    return ItemSource(path, **fields)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"doc": 1, "text": "a"}\n"b"\n{"text": "c", "x": 1}\n', r"'uid'.*'doc', 'text', 'x'\D"),
        ("a.jsonl", '"a"\n"b"\n', r"'uid'.*bare strings"),
        ("a.csv", "doc,text\n1,a\n", r"'uid'.*'doc', 'text'"),
        (
            "a.jsonl",
            "".join(json.dumps({"text": "a", f"{'f' * 90}{row:02}": 1}) + "\n" for row in range(40)),
            r"'f{70,80}\.\.\.'.* and 21 more",
        ),
    ],
)
def test_a_field_of_ids_that_is_in_no_row_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    with pytest.raises(UnreadableFile, match=rf"a\.\w+ has no .*{words}.*--id-field"):
        list(source_of(tmp_path, name, content, id_field="uid"))
    assert survey(source_of(tmp_path, name, content), 2000).items == len(list(source_of(tmp_path, name, content)))


def test_a_field_of_ids_need_not_be_in_every_row(tmp_path: Path) -> None:
    rows = '{"text": "a"}\n{"uid": null, "text": "b"}\n{"uid": 1.5, "text": "c"}\n'
    assert list(source_of(tmp_path, "a.jsonl", rows, id_field="uid")) == [("1", "a"), ("2", "b"), ("1.5", "c")]


def test_the_files_of_a_directory_have_no_field_of_ids(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UnreadableFile, match=r"is a directory.*--id-field"):
        list(ItemSource(tmp_path, id_field="uid"))


@pytest.mark.parametrize("given", ['{"a": 1}', "[1]", "true", "[]"])
def test_an_id_is_text_or_a_number(tmp_path: Path, given: str) -> None:
    with pytest.raises(UnreadableFile, match=r"a\.jsonl, line 2, has .*for an id"):
        list(source_of(tmp_path, "a.jsonl", f'{{"text": "a"}}\n{{"id": {given}, "text": "b"}}\n'))


@pytest.mark.parametrize(
    "words",
    [
        ["embed-file", "", "out.npy", "-m", "m"],
        ["embed-file", "a.txt", "", "-m", "m"],
        ["search", "what", "", "-m", "m"],
    ],
)
def test_an_empty_name_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "a.txt").write_text("a" * 50)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "empty" in done.output


def test_a_pipe_cannot_be_read_twice_and_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "a.jsonl")
    with pytest.raises(UnreadableFile, match=r"a\.jsonl is no regular file.*write what it holds into a file"):
        list(ItemSource(path))


def test_a_row_without_a_text_tells_the_fields_it_has(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"line 2, has no 'text', it has 'id;text'; name .*--text-field"):
        list(source_of(tmp_path, "a.csv", "id;text\n1;a\n"))
    with pytest.raises(UnreadableFile, match=r"line 1, is '\[1\]' and neither an object with 'text' nor a text"):
        list(source_of(tmp_path, "a.jsonl", "[1]"))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_reads_is_not_json(tmp_path: Path, number: str) -> None:
    with pytest.raises(UnreadableFile, match=f"line 1, cannot be read as JSON .{number} is no number"):
        list(source_of(tmp_path, "a.jsonl", f'{{"id": {number}, "text": "a"}}'))


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfnight")
    assert list(ItemSource(tmp_path)) == [("a.txt", "night")]
