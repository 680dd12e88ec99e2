"""What the head of an HTTP answer means for a file of which ``offset`` bytes are here already. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from synapse_host.values import value_object

#: Statuses that may pass by themselves.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
#: RFC 9110, 8.8.3, of ASCII alone: what lies beyond it cannot be sent back as it came.
_STRONG_TAG = re.compile(r'"[\x21\x23-\x7e]*"')
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@value_object
class Body:
    """The bytes from ``start`` on follow. ``size`` is that of the whole file as the server tells it, if it does.

    ``until_closed``: the body ends with its connection, and whether it is whole shows by its size alone (RFC 9112,
    6.3).
    """

    start: int
    size: int | None
    until_closed: bool = False


@value_object
class Refused:
    """No bytes. ``passing`` where it may be worth asking again, after ``retry_after_s`` if the server names a time."""

    status: int
    passing: bool
    retry_after_s: float | None = None


@value_object
class BeginAnew:
    """The server cannot go on from the offset: ask for the file from its start."""


Answer = Body | Refused | BeginAnew


def read_answer(status: int, headers: Mapping[str, str], offset: int, *, now: datetime) -> Answer:
    """Read status and headers; header names are as the caller's mapping compares them."""
    until_closed = not (headers.get("Content-Length") or headers.get("Transfer-Encoding"))
    if status == 200:
        return Body(0, _number(headers.get("Content-Length")), until_closed)
    if status == 206 and offset:
        found = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != offset:
            return BeginAnew()
        return Body(offset, None if found[3] == "*" else int(found[3]), until_closed)
    if status == 416 and offset:
        return BeginAnew()
    return Refused(status, status in _PASSING, retry_after_s(headers.get("Retry-After"), now))


def retry_after_s(text: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, given as seconds or as a date; None for one that says neither."""
    if text is None:
        return None
    seconds = _number(text.strip())
    if seconds is not None:
        return float(seconds)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max(0.0, ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds())


def strong_tag(text: str | None) -> str | None:
    """An ETag header that may be sent back in If-Range: a strong one, and none that no header may hold."""
    return text if text is not None and _STRONG_TAG.fullmatch(text) else None


def _number(text: str | None) -> int | None:
    # int() would also read signs, underscores and other alphabets' digits.
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None
