"""Items from files and vectors into files, without a host."""

from __future__ import annotations

import builtins
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from synapse_host.cli.embed_file import content_key, embed_file
from synapse_host.cli.file_items import ItemSource, Survey, survey
from synapse_host.cli.passages import UnreadableFile
from synapse_host.cli.user_commands import app
from synapse_host.cli.vector_files import UnwritableFile, require_apart, require_form, vector_file
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost
from synapse_host.client.replies import EmbedReply, Truncation

DIMS = 3


def reply(first: int, count: int) -> EmbedReply:
    places = range(first, first + count)
    return EmbedReply(
        ids=tuple(f"id-{place}" for place in places),
        vectors=np.array([[place, -place, 0.1 * place] for place in places], dtype=np.float32),
        fingerprint="f" * 64,
        table_epoch=2,
        dims=DIMS,
        module_generation=1,
        provenance={"engine": {"engine": "e"}},
        equivalent_to=(),
        real_token_counts=tuple(place + 2 for place in places),
        truncations=tuple(Truncation(place + 3, place + 2, place % 2 == 1) for place in places),
        content_sha256=tuple(f"{place:064x}" for place in places),
        submitted_sha256=tuple(f"{place + 1:064x}" for place in places),
    )


def written(path: Path) -> None:
    with vector_file(path, 5) as vectors:
        vectors.add(reply(0, 3))
        vectors.add(reply(3, 2))


def skip_without_package(name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow.parquet")


WHOLE = np.array([[place, -place, 0.1 * place] for place in range(5)], dtype=np.float32)


def test_npy_holds_the_rows_and_its_companion_the_rest(tmp_path: Path) -> None:
    written(path := tmp_path / "v.npy")
    assert np.array_equal(np.load(path), WHOLE)
    assert np.load(path, mmap_mode="r").dtype == np.dtype("<f4")
    facts = json.loads((tmp_path / "v.npy.json").read_text("utf-8"))
    assert facts["ids"] == [f"id-{place}" for place in range(5)]
    assert (facts["rows"], facts["dims"], facts["fingerprint"], facts["table_epoch"]) == (5, 3, "f" * 64, 2)


def test_json_lines_hold_a_row_each(tmp_path: Path) -> None:
    written(path := tmp_path / "v.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [row["id"] for row in rows] == [f"id-{place}" for place in range(5)]
    assert np.array_equal(np.array([row["vector"] for row in rows], dtype=np.float32), WHOLE)
    assert [row["truncated"] for row in rows] == [False, True, False, True, False]
    assert {row["fingerprint"] for row in rows} == {"f" * 64}


def test_parquet_holds_columns_and_the_identity(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    written(path := tmp_path / "v.parquet")
    table = pq.read_table(path)
    assert table.column("id").to_pylist() == [f"id-{place}" for place in range(5)]
    assert np.array_equal(np.array(table.column("vector").to_pylist(), dtype=np.float32), WHOLE)
    assert table.column("truncated").to_pylist() == [False, True, False, True, False]
    assert json.loads(table.schema.metadata[b"fingerprint"]) == "f" * 64
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[3]"


def test_parquet_without_its_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnwritableFile, match=r"pyarrow.*synapse-host\[parquet\]"):
        require_form(tmp_path / "v.parquet")


def test_a_name_of_no_known_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnwritableFile, match=r"v\.txt.*\.npy"):
        require_form(tmp_path / "v.txt")


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_work_that_ends_early_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, name: str) -> None:
    skip_without_package(name)
    path = tmp_path / name
    path.write_bytes(b"the vectors of yesterday")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(path, KeyboardInterrupt())
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert path.read_bytes() == b"the vectors of yesterday"


def _interrupted(path: Path, by: BaseException) -> None:
    with vector_file(path, 5) as vectors:
        vectors.add(reply(0, 3))
        raise by


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnwritableFile, match="No such file"), vector_file(tmp_path / "no" / "v.npy", 5):
        pass


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_a_fault_of_the_connection_is_not_taken_for_one_of_the_file(tmp_path: Path, name: str) -> None:
    skip_without_package(name)
    with pytest.raises(ConnectionLost, match="no answer"):
        _interrupted(tmp_path / name, ConnectionLost("no answer"))


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
def test_a_full_disk_is_one_of_the_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_package(name)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwritableFile, match=rf"{name} cannot be written \(No space left"):
        written(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_is_one_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array_header_1_0", full)
    with pytest.raises(UnwritableFile, match="No space left"):
        written(tmp_path / "v.npy")


@pytest.mark.parametrize("link", ["same", "symbolic", "hard"])
def test_texts_are_not_replaced_by_their_vectors(tmp_path: Path, link: str) -> None:
    (source := tmp_path / "v.jsonl").write_text('"a"\n')
    output = tmp_path / ("v.jsonl" if link == "same" else "w.jsonl")
    if link == "symbolic":
        output.symlink_to(source)
    elif link == "hard":
        output.hardlink_to(source)
    with pytest.raises(UnwritableFile, match=r"v\.jsonl itself"):
        require_apart(source, output)


def test_a_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "v.npy").mkdir()
    with pytest.raises(UnwritableFile, match="is a directory"):
        require_apart(tmp_path / "a.jsonl", tmp_path / "v.npy")


def test_leftovers_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    leftover = [tmp_path / f".{name}.{gone.pid}.part" for name in ("v.npy", "v.npy.json")]
    others = [
        tmp_path / f".v.npy.{os.getppid()}.part",
        tmp_path / f".w.npy.{gone.pid}.part",
        tmp_path / f".v.npy.{gone.pid}.part.txt",
    ]
    for file in [*leftover, *others]:
        file.write_bytes(b"half")
    written(tmp_path / "v.npy")
    assert not any(file.exists() for file in leftover)
    assert all(file.exists() for file in others), "of a process that runs, and of other outputs"


def test_a_leftover_that_somebody_holds_is_left(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    held = tmp_path / f".v.npy.{gone.pid}.part"
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        written(tmp_path / "v.npy")
        assert held.exists(), "its process is of another container"


# --- items ---------------------------------------------------------------------------------------------------------


def surveyed(source: ItemSource) -> Survey:
    return survey(source, 2000)


def source_of(tmp_path: Path, name: str, content: str, **fields: str) -> ItemSource:
    (path := tmp_path / name).write_text(content, encoding="utf-8")
    return ItemSource(path, **fields)


@pytest.mark.parametrize(
    ("name", "content", "items"),
    [
        (
            "a.jsonl",
            '{"id": "x", "text": "one"}\n\n{"text": "two"}\n"three"\n',
            [("x", "one"), ("3", "two"), ("4", "three")],
        ),
        ("a.jsonl", '{"id": 7, "text": ""}\n{"id": "", "text": "b"}', [("7", ""), ("2", "b")]),
        ("a.NDJSON", '"é\\u2028"\n', [("1", "é\u2028")]),
        ("a.csv", 'id,text\nx,"two\nlines"\n,b\n', [("x", "two\nlines"), ("2", "b")]),
        ("a.csv", "text\na\nb\n", [("1", "a"), ("2", "b")]),
        ("a.csv", "\ufeffid,text\nx,a\n", [("x", "a")]),
        ("a.jsonl", '\ufeff{"id": "x", "text": "a"}\n', [("x", "a")]),
        ("a.csv", "", []),
    ],
)
def test_items_of_a_file(tmp_path: Path, name: str, content: str, items: list[tuple[str, str]]) -> None:
    source = source_of(tmp_path, name, content)
    assert list(source) == items
    assert list(source) == items, "every walk reads the file anew"
    assert surveyed(source).items == len(items)


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.csv", "key,body,text\nk,b,t\n", text_field="body", id_field="key")
    assert list(source) == [("k", "b")]


def test_items_of_a_directory_are_its_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.rst", "d.png"):
        (tmp_path / name).write_text(f"text of {name}")
    assert list(ItemSource(tmp_path)) == [(name, f"text of {name}") for name in ("a.md", "b.txt", "sub/c.rst")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{broken\n', "line 2.*as JSON"),
        ("a.jsonl", b'{"txt": "a"}\n', "line 1, .*'text'.*--text-field"),
        ("a.jsonl", b'{"text": 5}\n', "line 1, has '5' in 'text', which is no text; correct it"),
        ("a.jsonl", b'{"id": "a", "text": null}\n', "line 1, has 'null' in 'text', which is no text; correct it"),
        ("a.jsonl", b'{"id": "a"}\n', "line 1, has no 'text', it has 'id'; name the field"),
        ("a.jsonl", b"{}\n", "line 1, has no 'text'; name the field"),
        ("a.jsonl", b"[1]\n", r"line 1, is '\[1\]' and neither an object with 'text' nor a text"),
        ("a.jsonl", b'"a"\n{"id": 1e400, "text": "a"}\n', "line 2, .*'1e400' is larger than a number may be"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', r"line 1, .*\('text' is in it 2 times\)"),
        ("a.jsonl", b'{"id": 1, "text": "a", "id": 2}\n', r"line 1, .*\('id' is in it 2 times\)"),
        ("a.csv", b"id,text\n1,a\n2\n", "line 3, has fewer fields than there are columns, and none for 'text'"),
        ("a.jsonl", b'"\xff"\n', "not UTF-8"),
        ("a.csv", b"id,body\n1,a\n", "line 2.*'text'"),
        ("a.csv", b'text\n"open\n', "not CSV"),
        ("a.csv", b"id,text\n1,a,b\n", "line 2, has more fields than there are columns.*quotes"),
        ("a.csv", b"id,text,text\n1,a,b\n", "2 columns 'text'"),
        ("a.jsonl", b'"a"\n' + b"[" * 200_000 + b"]" * 200_000, "line 2, cannot be read as JSON.*recursion"),
        ("a.txt", b"a", "ends in none"),
        ("missing.jsonl", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=words):
        list(ItemSource(path))


def test_numbers_and_fields_that_play_no_part_are_nobodys_business(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.jsonl", '{"id": 1.5e2, "text": "a", "note": 1, "note": 2}\n')
    assert list(source) == [("150.0", "a")]


def test_who_begins_is_told_the_key_and_how_to_end_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("synapse_host.cli.embed_file.tell", told.append)
    with pytest.raises(ConnectionLost):
        ended_by(ConnectionLost("gone"), tmp_path)
    first, command = told[0].splitlines()
    assert first == "texts: 2; to end their jobs:"
    assert re.fullmatch(r"  synapse-host jobs cancel --key embed-file-\w{32}", command)
    assert len(command) <= 80


def test_the_key_is_that_of_model_ids_and_texts(tmp_path: Path) -> None:
    keys = {
        content_key(model, surveyed(source_of(tmp_path, "a.jsonl", content)))
        for model in ("m", "n")
        for content in ('{"id": "a", "text": "b"}', '{"id": "ab", "text": ""}', '{"id": "a", "text": "c"}')
    }
    assert len(keys) == 6
    same = content_key("m", surveyed(source_of(tmp_path, "other.jsonl", '{"text": "b", "id": "a"}')))
    assert same in keys


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('"a"\n{"id": "x", "text": "\\ud800b"}\n', r"line 2: the text of 'x' holds U\+D800.* character 0"),
        ('{"id": "x\\ude00", "text": "b"}\n', r"line 1: the id of .* holds U\+DE00.* character 1"),
        (json.dumps({"id": "i" * 257, "text": "b"}), "line 1: the id 'iii.*257 characters and may have 256"),
        (json.dumps({"id": "i" * 256, "text": "b" * 2001}), "line 1: the text of .*2001 characters and may have 2000"),
    ],
)
def test_what_the_host_would_refuse_is_found_first(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UnreadableFile, match=rf"a\.jsonl, {words}"):
        surveyed(source_of(tmp_path, "a.jsonl", content))


def test_a_row_is_named_by_its_line(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.csv", f'id,text\nx,"two\nlines"\ny,{"b" * 2001}\n')
    with pytest.raises(UnreadableFile, match=r"a\.csv, line 4: the text of 'y'"):
        surveyed(source)


def test_a_file_whose_name_is_too_long_for_an_id_is_named(tmp_path: Path) -> None:
    (folder := tmp_path / ("d" * 200)).mkdir()
    (folder / ("f" * 60 + ".txt")).write_text("a")
    with pytest.raises(UnreadableFile, match=r"fff\.txt: the id 'ddd.*265 characters"):
        surveyed(ItemSource(tmp_path))


def test_an_id_of_an_earlier_part_is_refused_with_both_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"id": "twice" if line in {1, 4501} else f"id-{line}", "text": "a"}) for line in range(1, 4600)]
    source = source_of(tmp_path, "a.jsonl", "\n".join(lines))
    with pytest.raises(UnreadableFile, match=r"a\.jsonl, line 4501: the id 'twice' is that of .*a\.jsonl, line 1 too"):
        surveyed(source)


def test_an_id_given_may_not_be_the_line_of_another(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"line 2: the id '2' is that of .*line 1 too"):
        surveyed(source_of(tmp_path, "a.jsonl", '{"id": "2", "text": "a"}\n"b"\n'))


def test_ids_that_share_a_mark_are_no_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synapse_host.cli.file_items._mark", lambda item_id: 7)
    assert surveyed(source_of(tmp_path, "a.jsonl", '"a"\n"b"\n"c"\n')).items == 3


class BrokenClient:
    """A client whose work ends early by ``fault``."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def embed_jobs(self, *_: object, **__: object) -> Iterator[EmbedReply]:
        yield reply(0, 1)
        raise self.fault


def ended_by(fault: BaseException, tmp_path: Path) -> None:
    embed_file(
        cast("Client", BrokenClient(fault)),
        source_of(tmp_path, "a.jsonl", '"a"\n"b"\n'),
        tmp_path / "v.npy",
        model="m",
        request_key=None,
        retries=0,
        max_chars=2000,
        show=lambda done, total, found=False: None,
    )


def test_who_interrupts_is_told_that_the_host_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("synapse_host.cli.embed_file.tell", told.append)
    with pytest.raises(KeyboardInterrupt):
        ended_by(KeyboardInterrupt(), tmp_path)
    assert re.search("the host goes on .*run the same command again", "".join(told))


def test_a_lost_connection_is_named_with_what_to_do(tmp_path: Path) -> None:
    lost = ConnectionLost("the host closed the connection (EOFError); open a new client")
    words = r"^connection lost, the host closed .*EOFError\); start the host .*run the same command again"
    with pytest.raises(ConnectionLost, match=words):
        ended_by(lost, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_help_says_that_the_host_goes_on() -> None:
    shown = CliRunner().invoke(app, ["embed-file", "--help"]).stdout
    assert "host goes on with the jobs" in " ".join(shown.split())
