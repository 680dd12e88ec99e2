"""One byte string for one JSON value, so that equal values have equal digests whoever writes them.

The subset of JCS (RFC 8785) that identities need: object keys sorted by UTF-16 code unit, no blanks, the fewest
escapes, UTF-8. Numbers are integers of at most 2^53 - 1 in size; fractions are refused, because an identity must not
hang on how a library prints them. ``allow_floats`` lifts that for documents we do not write ourselves (the scores of a
Unigram tokenizer) and prints doubles as RFC 8785 does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

#: Largest integer a double holds exactly with all its neighbours (RFC 8785, section 3.2.2.3).
MAX_INTEGER = 2**53 - 1
#: Doubles from here up, and below 10^-6, are printed with an exponent (ECMAScript Number::toString).
_EXPONENT_FROM = 21
_EXPONENT_BELOW = -6

_escaped = json.JSONEncoder(ensure_ascii=False).encode
Write = Callable[[str], None]


def canonical_json(value: Any, *, allow_floats: bool = False) -> bytes:
    """The canonical UTF-8 bytes of ``value``: None, bool, int, str, and lists, tuples and mappings of these.

    Raises:
        ValueError: a number, a key or a type outside the subset, or text that is not Unicode; the message names the
            value and what to do.

    """
    parts: list[str] = []
    _write(value, parts.append, allow_floats)
    try:
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(_lone_surrogate(error)) from None


def _write(value: Any, write: Write, allow_floats: bool) -> None:
    if isinstance(value, str):
        write(_escaped(value))
    elif value is None or isinstance(value, bool):
        write("null" if value is None else "true" if value else "false")
    elif isinstance(value, int):
        write(_integer(value))
    elif isinstance(value, Mapping):
        _write_object(value, write, allow_floats)
    elif isinstance(value, (list, tuple)):
        _write_array(value, write, allow_floats)
    elif isinstance(value, float) and allow_floats:
        write(ecmascript_number(value))
    else:
        raise ValueError(f"{value!r} of type {type(value).__name__} has no canonical form; use an integer or a string")


def _integer(value: int) -> str:
    if abs(value) > MAX_INTEGER:
        raise ValueError(f"an integer of {value.bit_length()} bits passes 2^53 - 1; write it as a string")
    return str(value)


def _write_array(items: list[Any] | tuple[Any, ...], write: Write, allow_floats: bool) -> None:
    separator = "["
    for item in items:
        write(separator)
        _write(item, write, allow_floats)
        separator = ","
    write("]" if items else "[]")


def _write_object(members: Mapping[Any, Any], write: Write, allow_floats: bool) -> None:
    separator = "{"
    for key in sorted(members, key=_utf16):
        write(f"{separator}{_escaped(key)}:")
        _write(members[key], write, allow_floats)
        separator = ","
    write("}" if members else "{}")


def _utf16(key: Any) -> bytes:
    if not isinstance(key, str):
        raise ValueError(f"object key {key!r} of type {type(key).__name__} is no string; convert it first")
    try:
        return key.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise ValueError(_lone_surrogate(error)) from None


def _lone_surrogate(error: UnicodeEncodeError) -> str:
    return f"the text holds {error.object[error.start]!a}, half of a surrogate pair; remove it or complete the pair"


def ecmascript_number(value: float) -> str:
    """A double as ECMAScript prints it: the fewest digits that read back, exponent only outside [10^-6, 10^21).

    Raises:
        ValueError: NaN and the infinities, which JSON has no form for.

    """
    if not math.isfinite(value):
        raise ValueError(f"{value!r} has no JSON form; store a finite number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, point = _shortest_digits(abs(value))
    return sign + _placed(digits, point)


def _shortest_digits(value: float) -> tuple[str, int]:
    """The digits without leading or trailing zeros, and where the point stands: value = 0.digits x 10^point."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) - (len(whole + fraction) - len(digits)) + int(exponent or 0)
    return digits.rstrip("0"), point


def _placed(digits: str, point: int) -> str:
    if not _EXPONENT_BELOW < point <= _EXPONENT_FROM:
        mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
        return f"{mantissa}e{point - 1:+d}"
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    if point >= len(digits):
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"
