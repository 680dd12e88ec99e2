"""What a caller sent, as it may stand in a message: readable, and short whatever was sent."""

from __future__ import annotations

import reprlib

#: Characters of one value a message shows. A megabyte of parameters must not become a megabyte of message.
SHOWN_CHARS = 80
_BOUNDED = reprlib.Repr()
_BOUNDED.maxstring = _BOUNDED.maxother = _BOUNDED.maxlong = SHOWN_CHARS


def quoted(value: object) -> str:
    """``repr`` of ``value``, its middle left out where it is long."""
    return _BOUNDED.repr(value)


def cut(name: str) -> str:
    """A name as it is, its end left out where it is long."""
    return name if len(name) <= SHOWN_CHARS else f"{name[: SHOWN_CHARS - 3]}..."
