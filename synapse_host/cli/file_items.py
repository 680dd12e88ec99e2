"""Items to embed from a file of many texts or a directory of files: read one at a time, never all at once."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from math import isinf
from pathlib import Path
from typing import Any, NamedTuple

from synapse_host.cli.passages import UnreadableFile, text_files, text_of
from synapse_host.cli.sought_field import SoughtField, listed, shown
from synapse_host.values import value_object

#: An item: its id and its text.
Item = tuple[str, str]
#: The most characters of an id that the host takes.
MAX_ID_CHARS = 256
#: The field of ids where none is named; it need not be there.
ID_FIELD = "id"
#: UTF-8, and the mark that spreadsheets put before it left out: it would be a part of the first column's name.
_ENCODING = "utf-8-sig"


class Entry(NamedTuple):
    """An item and where it stands, for messages: a file and a line (of a row of several lines the last), or a file."""

    where: str
    id: str
    text: str


class _Row(NamedTuple):
    """A line or row as it was read: where it ends, its number, and what is in it."""

    line: int
    number: int
    given: Any


@value_object
class ItemSource:
    """Where items come from; every walk over them reads the files anew.

    A line of JSON Lines is an object or a bare string, a row of CSV has columns with names, and a directory has a text
    in each of its files. An item without an id gets the number of its line or row, from 1; a file's id is its name.
    An ``id_field`` that was named has to be in a row at least.
    """

    path: Path
    text_field: str = "text"
    id_field: str | None = None

    def __iter__(self) -> Iterator[Item]:
        """The items, in the order of lines, rows or names; raises as ``entries``."""
        return ((entry.id, entry.text) for entry in self.entries())

    def entries(self) -> Iterator[Entry]:
        """The items with their places, in the order of lines, rows or names.

        Raises:
            UnreadableFile: a file cannot be read, a line holds no text or an id that is none, or none has the field of
                ids; the message names file and line.

        """
        if self.path.is_dir():
            if self.id_field is not None:
                raise UnreadableFile(
                    f"{self.path} is a directory, and the ids of its files are their names; leave --id-field out"
                )
            files = text_files(self.path)
            return (Entry(str(file), str(file.relative_to(self.path)), text_of(file)) for file in files)
        read = _READERS.get(self.path.suffix.lower())
        if read is None:
            raise UnreadableFile(
                f"{self.path} is no directory and ends in none of {', '.join(_READERS)}; convert it to one of these"
            )
        if self.path.exists() and not self.path.is_file():
            raise UnreadableFile(
                f"{self.path} is no regular file, and this reads it twice; write what it holds into a file first"
            )
        return self._explained(read)

    def _explained(self, read: Callable[[ItemSource], Iterator[_Row]]) -> Iterator[Entry]:
        sought = SoughtField(self.id_field)
        try:
            for row in read(self):
                sought.look(row.given)
                yield self.entry(row)
        except OSError as problem:
            raise UnreadableFile(f"{self.path} cannot be read ({problem.strerror}); correct the name") from None
        except UnicodeDecodeError as problem:
            raise UnreadableFile(f"{self.path} is not UTF-8 text (near byte {problem.start}); convert it") from None
        sought.require(self.path)

    def entry(self, row: _Row) -> Entry:
        """The item of one line or row, which is its id when it has none; raises ``UnreadableFile`` naming it."""
        where, given = f"{self.path}, line {row.line}", row.given
        if isinstance(given, str):
            return Entry(where, str(row.number), given)
        text = given.get(self.text_field) if isinstance(given, dict) else None
        if not isinstance(text, str):
            raise UnreadableFile(f"{where}, {self._without_text(given)}")
        field = self.id_field or ID_FIELD
        name = given.get(field)
        if isinstance(name, dict | list | bool):
            raise UnreadableFile(
                f"{where}, has {shown(json.dumps(name))} in {field!r} for an id, which is text or a number; "
                "correct it, or name another field with --id-field"
            )
        return Entry(where, str(row.number) if name is None or name == "" else str(name), text)

    def _without_text(self, given: Any) -> str:
        """What a line or row has in the place of a text, and what to do."""
        if not isinstance(given, dict):
            return (
                f"is {shown(json.dumps(given))} and neither an object with {self.text_field!r} nor a text; correct it"
            )
        if self.text_field not in given:
            fields = f", it has {listed(given)}" if given else ""
            return f"has no {self.text_field!r}{fields}; name the field with --text-field"
        if self.path.suffix.lower() == ".csv":
            return f"has fewer fields than there are columns, and none for {self.text_field!r}; complete the row"
        found = shown(json.dumps(given[self.text_field]))
        return (
            f"has {found} in {self.text_field!r}, which is no text; correct it, or name another field with --text-field"
        )


@value_object
class Survey:
    """How many items there are, and a digest of all ids and texts in their order."""

    items: int
    digest: str


def survey(source: ItemSource, max_chars: int) -> Survey:
    """Read everything once, so that nothing is handed in of what the host would refuse a part of later.

    Keeps eight bytes of digest an item. ``max_chars`` is the most characters a text may have.

    Raises:
        UnreadableFile: an item cannot be sent, is too long, or has the id of an earlier one; the message says where.

    """
    digest, items = hashlib.sha256(), 0
    seen: set[int] = set()
    for entry in source.entries():
        items += 1
        for encoded in _sendable(entry, max_chars):
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        mark = _mark(entry.id)
        if mark in seen:
            _refuse_repeated(source, entry, items)
        seen.add(mark)
    return Survey(items, digest.hexdigest())


def _sendable(entry: Entry, max_chars: int) -> tuple[bytes, bytes]:
    """Id and text in UTF-8; raises ``UnreadableFile``."""
    if len(entry.id) > MAX_ID_CHARS:
        shown = f"{entry.id[:40]!r}…"
        raise UnreadableFile(
            f"{entry.where}: the id {shown} has {len(entry.id)} characters and may have {MAX_ID_CHARS}; shorten it"
        )
    if len(entry.text) > max_chars:
        raise UnreadableFile(
            f"{entry.where}: the text of {entry.id!r} has {len(entry.text)} characters and may have {max_chars} "
            "(the host's setting inline.max_text_chars); split it"
        )
    try:
        return entry.id.encode("utf-8"), entry.text.encode("utf-8")
    except UnicodeEncodeError as fault:
        which = "the id" if fault.object == entry.id else "the text"
        raise UnreadableFile(
            f"{entry.where}: {which} of {entry.id!r} holds U+{ord(fault.object[fault.start]):04X}, half of a surrogate "
            f"pair, at character {fault.start}; remove it or complete the pair"
        ) from None


def _mark(item_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(item_id.encode("utf-8"), digest_size=8).digest(), "big")


def _refuse_repeated(source: ItemSource, again: Entry, place: int) -> None:
    """Refuse the id of the entry at ``place``, from 1, when an earlier one has it, and not just the same mark."""
    for first in islice(source.entries(), place - 1):
        if first.id == again.id:
            raise UnreadableFile(
                f"{again.where}: the id {again.id!r} is that of {first.where} too; give each text an id of its own"
            )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise ValueError(f"{shown(digits)} is larger than a number may be")
    return number


def _refusing_repeated(names: Collection[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Makes the object of a line; raises ``ValueError`` where one of ``names`` is in it twice."""

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            given = [name for name, _ in pairs]
            for name in names:
                if given.count(name) > 1:
                    raise ValueError(f"{shown(name)} is in it {given.count(name)} times")
        return made

    return make


def _json_lines(source: ItemSource) -> Iterator[_Row]:
    make = _refusing_repeated({source.text_field, source.id_field or ID_FIELD})
    with source.path.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                given = json.loads(line, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=make)
            except (ValueError, RecursionError) as fault:
                raise UnreadableFile(
                    f"{source.path}, line {number}, cannot be read as JSON ({fault}); correct it"
                ) from None
            yield _Row(number, number, given)


def _csv_rows(source: ItemSource) -> Iterator[_Row]:
    # A text may be longer than the module's careful default of 128 KiB.
    csv.field_size_limit(sys.maxsize)
    with source.path.open(encoding=_ENCODING, newline="") as lines:
        try:
            rows = csv.DictReader(lines, strict=True)
            _refuse_repeated_columns(source, rows.fieldnames or ())
            for number, row in enumerate(rows, start=1):
                # What passes the columns is kept under no name.
                if None in row:
                    raise UnreadableFile(
                        f"{source.path}, line {rows.line_num}, has more fields than there are columns; "
                        "put a text with commas in quotes"
                    )
                yield _Row(rows.line_num, number, row)
        except csv.Error as fault:
            raise UnreadableFile(f"{source.path} is not CSV ({fault}); correct it") from None


def _refuse_repeated_columns(source: ItemSource, names: Sequence[str]) -> None:
    for name in (source.text_field, source.id_field or ID_FIELD):
        if names.count(name) > 1:
            raise UnreadableFile(f"{source.path} has {names.count(name)} columns {name!r}; give each a name of its own")


_READERS: dict[str, Callable[[ItemSource], Iterator[_Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv_rows,
}
