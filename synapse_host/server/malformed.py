"""Says what is wrong with a frame that is no request. Pure, and off the path of good requests.

orjson refuses a lone surrogate without saying where, and gives no id to answer to. So such a frame is read once more
with the standard library, only to find both.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from synapse_host.errors import InvalidRequest

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Bytes of JSON an id may take: it comes back in every answer, which must fit a frame whatever else it says.
MAX_ID_BYTES = 1024
#: Characters shown on either side of where a frame stops being JSON.
_EXCERPT = 20
_SURROGATE = re.compile("[\ud800-\udfff]")


class MalformedFrame(Exception):
    """A frame that is no request; ``id`` is the request's where it could be read, else None."""

    def __init__(self, request_id: Any, message: str) -> None:
        super().__init__(message)
        self.id = request_id
        self.error = InvalidRequest(message, channel=True)


def explain(frame: bytes, fault: Exception) -> MalformedFrame:
    """Say what is wrong with a frame orjson refused; it names no item and gives no id, so look again where worth it."""
    if _SURROGATE_ESCAPE.search(frame):
        try:
            document = json.loads(frame)
        except (ValueError, RecursionError):
            document = None
        found = _find_surrogate(document)
        if found is not None:
            request_id = document.get("id") if isinstance(document, dict) else None
            return MalformedFrame(_sendable(request_id), f"{found}; send well-formed Unicode")
    return MalformedFrame(
        None, f"the frame is not UTF-8 JSON: {fault}, near {_near(frame, fault)}; send one JSON object"
    )


def _near(frame: bytes, fault: Exception) -> str:
    """The few bytes where reading stopped, as ASCII."""
    place = getattr(fault, "pos", 0)
    try:
        return ascii(frame.decode()[max(place - _EXCERPT, 0) : place + _EXCERPT])
    except UnicodeDecodeError as broken:
        return ascii(frame[max(broken.start - _EXCERPT, 0) : broken.start + _EXCERPT])


def _find_surrogate(document: object) -> str | None:
    """The place of the first lone surrogate, in the order of the document; no recursion, for depth is the sender's."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str) and (match := _SURROGATE.search(value)):
            return f"{place} holds a lone surrogate U+{ord(match[0]):04X} at character {match.start()}"
        waiting.extend(reversed(_parts(place, value)))
    return None


def _parts(place: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, list):
        return [(f"{place}[{index}]", child) for index, child in enumerate(value)]
    if not isinstance(value, dict):
        return []
    item = value.get("id")
    name = f" (item {item!a})" if place and isinstance(item, str) else ""
    parts: list[tuple[str, object]] = [(f"a key of {place or 'the request'}", key) for key in value]
    before = f"{place}." if place else ""
    return parts + [(f"{before}{key}{name}", child) for key, child in value.items()]


def _sendable(request_id: Any) -> Any:
    try:
        return request_id if len(orjson.dumps(request_id)) <= MAX_ID_BYTES else None
    except TypeError:
        return None


def kind_of(value: object) -> str:
    """The JSON kind of a decoded value, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null or missing"}
    return names.get(type(value), "a number")
