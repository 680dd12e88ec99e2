"""Items to embed from a file of many texts or a directory of files: read one at a time, never all at once."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synapse_host.cli.passages import UnreadableFile, text_files, text_of

#: An item: its id and its text.
Item = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ItemSource:
    """Where items come from; every walk over them reads the files anew.

    A line of JSON Lines is an object or a bare string, a row of CSV has columns with names, and a directory has a text
    in each of its files. An item without an id gets the number of its line or row, from 1; a file's id is its name.
    """

    path: Path
    text_field: str = "text"
    id_field: str = "id"

    def __iter__(self) -> Iterator[Item]:
        """The items, in the order of lines, rows or names.

        Raises:
            UnreadableFile: a file cannot be read, or a line holds no text; the message names file and line.

        """
        if self.path.is_dir():
            return ((str(file.relative_to(self.path)), text_of(file)) for file in text_files(self.path))
        read = _READERS.get(self.path.suffix.lower())
        if read is None:
            raise UnreadableFile(
                f"{self.path} is no directory and ends in none of {', '.join(_READERS)}; convert it to one of these"
            )
        return self._explained(read)

    def _explained(self, read: Callable[[ItemSource], Iterator[Item]]) -> Iterator[Item]:
        try:
            yield from read(self)
        except OSError as problem:
            raise UnreadableFile(f"{self.path} cannot be read ({problem.strerror}); correct the name") from None
        except UnicodeDecodeError as problem:
            raise UnreadableFile(f"{self.path} is not UTF-8 text (near byte {problem.start}); convert it") from None

    def item(self, number: int, given: Any) -> Item:
        """The item of one line or row; raises ``UnreadableFile`` naming it."""
        if isinstance(given, str):
            return str(number), given
        text = given.get(self.text_field) if isinstance(given, dict) else None
        if not isinstance(text, str):
            raise UnreadableFile(
                f"{self.path}, item {number}, has no text in {self.text_field!r}; name the field with --text-field"
            )
        name = given.get(self.id_field)
        return str(number) if name is None or name == "" else str(name), text


@dataclass(frozen=True, slots=True)
class Survey:
    """How many items there are, and a digest of all ids and texts in their order."""

    items: int
    digest: str


def survey(source: ItemSource) -> Survey:
    """Read everything once, keeping nothing; raises ``UnreadableFile``."""
    digest, items = hashlib.sha256(), 0
    for item in source:
        items += 1
        for part in item:
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return Survey(items, digest.hexdigest())


def _json_lines(source: ItemSource) -> Iterator[Item]:
    with source.path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                given = json.loads(line)
            except ValueError as fault:
                raise UnreadableFile(f"{source.path}, line {number}, is not JSON ({fault}); correct it") from None
            yield source.item(number, given)


def _csv_rows(source: ItemSource) -> Iterator[Item]:
    # A text may be longer than the module's careful default of 128 KiB.
    csv.field_size_limit(sys.maxsize)
    with source.path.open(encoding="utf-8", newline="") as lines:
        try:
            for number, row in enumerate(csv.DictReader(lines, strict=True), start=1):
                yield source.item(number, row)
        except csv.Error as fault:
            raise UnreadableFile(f"{source.path} is not CSV ({fault}); correct it") from None


_READERS: dict[str, Callable[[ItemSource], Iterator[Item]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv_rows,
}
