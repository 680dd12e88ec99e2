"""Which parameter cannot be written as JSON in UTF-8, for a message that names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: JSON here has 64-bit integers, as the library that writes it.
_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1


def unsendable(params: Mapping[str, Any]) -> str | None:
    """What is wrong with the first parameter that cannot be sent, where, and a remedy; None where nothing is found."""
    return next(_problems("params", params), None)


def _problems(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _half_surrogate(path, value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _half_surrogate(f"a name in {path}", str(name))
            yield from _problems(f"{path}.{name}", item)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _problems(f"{path}[{place}]", item)
    elif isinstance(value, int) and not _LEAST_INTEGER <= value <= _MOST_INTEGER:
        yield f"{path} is an integer of {value.bit_length()} bits, and 64 can be sent; use a smaller one"


def _half_surrogate(path: str, text: str) -> Iterator[str]:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        yield (
            f"{path} holds U+{half:04X}, half of a surrogate pair, at character {error.start}; "
            "remove it or complete the pair"
        )
