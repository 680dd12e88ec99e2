"""What the JSON value of a message field may be, by the name of its shape. Pure.

A boolean is never an integer here, 3.0 never 3, and an object with a key too many is as wrong as one with a key too
few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_U32_MAX = 2**32 - 1
#: Counters and sizes of the protocol are u64 at most.
_U64_MAX = 2**64 - 1
#: A request id comes back in every frame of the reply, so its length bounds what a reply needs beside its payload.
LONGEST_REQ_ID = 64

#: Above every size of a sum that is compared; an infinity is none.
_LARGEST_SIZE = 1e300

Check = Callable[[Any], bool]


class FieldCheck(NamedTuple):
    """Whether a value will do, and the words that say what would."""

    accepts: Check
    words: str


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_req_id(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= LONGEST_REQ_ID


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _U64_MAX


def _is_u32(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _U32_MAX


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_share(value: Any) -> bool:
    # No comparison holds for NaN, and math.isfinite raises for an integer too large to be a float.
    return type(value) in (int, float) and 0 <= value <= 1


def _is_size(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LARGEST_SIZE


def _one_of(*words: str) -> FieldCheck:
    return FieldCheck(lambda value: type(value) is str and value in words, f"one of {', '.join(words)}")


def _list_of(accepts: Check) -> Check:
    return lambda value: type(value) is list and all(map(accepts, value))


def _map_of(accepts: Check) -> Check:
    return lambda value: type(value) is dict and all(map(accepts, value.values()))


def _object(**fields: Check) -> Check:
    """Exactly these keys, each with a value its check accepts."""

    def accepts(value: Any) -> bool:
        if type(value) is not dict or len(value) != len(fields):
            return False
        return all(name in value and check(value[name]) for name, check in fields.items())

    return accepts


def _is_some_text(value: Any) -> bool:
    return type(value) is str and bool(value)


# The two that stand in large numbers in one message are written out: an ``_object`` takes three times as long.
def _is_item(value: Any) -> bool:
    return type(value) is dict and len(value) == 2 and _is_text(value.get("id")) and _is_count(value.get("n_tokens"))


def _is_token_count(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and _is_count(value.get("n_tokens"))


def _is_positive(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_filled(accepts: Check) -> Check:
    return lambda value: accepts(value) and len(value) > 0


_EXECUTABLE = _object(id=_is_text, layers=_list_of(_is_u32))
_CHECK = _object(
    kind=_one_of("operation", "vectors", "scores").accepts,
    subject=_is_text,
    label=_is_text,
    rows=_is_count,
    width=_is_count,
    scale=_is_size,
    fault=_is_text,
)

#: Annotation of a message field -> the check of its JSON value. ``None`` beside it makes the field optional.
FIELD_CHECKS: Mapping[str, FieldCheck] = {
    "str": FieldCheck(_is_text, "a text"),
    "ReqId": FieldCheck(_is_req_id, f"a text of 1 to {LONGEST_REQ_ID} characters"),
    "int": FieldCheck(_is_count, "an integer from 0 to 2^64 - 1"),
    "U32": FieldCheck(_is_u32, "an integer from 0 to 2^32 - 1"),
    "bool": FieldCheck(_is_flag, "true or false"),
    "Share": FieldCheck(_is_share, "a number from 0 to 1"),
    "Phase": _one_of("setup", "inference", "control"),
    "FinishReason": _one_of("stop", "length"),
    "list[int]": FieldCheck(_list_of(_is_count), "an array of integers"),
    "TextMap": FieldCheck(_map_of(_is_text), "an object of texts"),
    "EngineFields": FieldCheck(
        _object(engine=_is_some_text, version=_is_some_text, build_flags=_map_of(_is_text)),
        "an object of the texts engine and version and of build_flags, an object of texts",
    ),
    "PackedFields": FieldCheck(
        _object(widths=_is_filled(_list_of(_is_positive)), max_rows=_is_positive),
        "an object of widths, an array of at least one positive integer, and of max_rows, a positive integer",
    ),
    "Items": FieldCheck(_list_of(_is_item), "an array of {id, n_tokens}"),
    "TokenCounts": FieldCheck(_list_of(_is_token_count), "an array of {n_tokens}"),
    "Inventory": FieldCheck(
        _object(executables=_list_of(_EXECUTABLE), cpu_stages=_list_of(_is_text)),
        "an object of executables, an array of {id, layers}, and of cpu_stages, an array of texts",
    ),
    "Checks": FieldCheck(
        _list_of(_CHECK), "an array of {kind, subject, label, rows, width, scale, fault}, scale from 0 up"
    ),
    "ShapeTable": FieldCheck(_map_of(_list_of(_is_count)), "an object of arrays of integers"),
    "ShareTable": FieldCheck(_map_of(_is_share), "an object of numbers from 0 to 1"),
}
