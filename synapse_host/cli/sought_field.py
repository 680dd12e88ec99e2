"""A field that somebody named, sought in rows: in none of them it is mistyped, and the fields there are are told."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from synapse_host.cli.passages import UnreadableFile

#: Names of fields that a message shows, characters of each, and the most that are kept to be counted.
_SHOWN_FIELDS, _SHOWN_CHARS, _MOST_FIELDS = 20, 80, 1000


class SoughtField:
    """The field of ids in the rows of one file; None where nobody named one."""

    def __init__(self, name: str | None) -> None:
        self._name = name or ""
        self._found = name is None
        self._rows = 0
        self._others: dict[str, None] = {}

    def look(self, row: object) -> None:
        """See what fields the next row has, if it is one with fields."""
        if self._found:
            return
        self._rows += 1
        if isinstance(row, dict):
            self._found = self._name in row
            self._others.update(dict.fromkeys(islice(row, max(0, _MOST_FIELDS - len(self._others)))))

    def require(self, path: Path) -> None:
        """After the last row: raises ``UnreadableFile`` when there were rows and none had it."""
        if self._rows and not self._found:
            raise UnreadableFile(
                f"{path} has no {shown(self._name)} in any row, {self._listed()}; name the field of the ids with "
                "--id-field, or leave that out to number the rows"
            )

    def _listed(self) -> str:
        return f"which have {listed(self._others)}" if self._others else "for all of them are bare strings"


def listed(fields: Iterable[str]) -> str:
    """Names of fields as they may stand in a message."""
    names = list(fields)
    more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    return f"{', '.join(map(shown, names[:_SHOWN_FIELDS]))}{more}"


def shown(name: str) -> str:
    """A name or value as it may stand in a message."""
    return repr(name if len(name) <= _SHOWN_CHARS else f"{name[: _SHOWN_CHARS - 3]}...")
