"""Control messages to JSON bytes and back, strictly: every field is checked for presence and exact type.

Stdlib only, pure. A boolean is never an integer here, 3.0 never 3, and an unknown field is a fault: both sides of a
connection are released together, so a surprise means one of them is broken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NoReturn, TypeVar

from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import REQUESTS, RESPONSES, Hello, HelloAck, Message

#: Counters and sizes of the protocol are u64 at most.
_U64_MAX = 2**64 - 1
#: How much of an offending value an error message repeats.
_SHOWN_CHARS = 80


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

Check = Callable[[Any], bool]
M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The JSON bytes of ``message``, without a frame header."""
    return _encoder.encode(message.to_wire()).encode()


def decode_request(payload: bytes) -> Message:
    """The request in ``payload``; raises ``ProtocolFault``."""
    return _decode_tagged(payload, REQUESTS, "request")


def decode_response(payload: bytes) -> Message:
    """The response in ``payload``; raises ``ProtocolFault``."""
    return _decode_tagged(payload, RESPONSES, "response")


def decode_hello(payload: bytes) -> Hello:
    """The HELLO in ``payload``; raises ``ProtocolFault``. Whether it is acceptable is decided in ``handshake``."""
    return decode_fields(Hello, decode_object(payload, "HELLO"), "HELLO")


def decode_hello_ack(payload: bytes) -> HelloAck:
    """The HELLO_ACK in ``payload``; raises ``ProtocolFault``."""
    return decode_fields(HelloAck, decode_object(payload, "HELLO_ACK"), "HELLO_ACK")


def decode_object(payload: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``payload``; raises ``ProtocolFault`` naming ``what`` was expected."""
    try:
        value = _decoder.decode(payload.decode())
    except (ValueError, RecursionError) as problem:
        raise ProtocolFault(f"{what} frame of {len(payload)} bytes is not JSON: {problem}") from problem
    if type(value) is not dict:
        raise ProtocolFault(f"{what} frame holds {_shown(value)}, not a JSON object")
    return value


def decode_fields(kind: type[M], wire: Mapping[str, Any], what: str) -> M:
    """A ``kind`` from the fields of ``wire``; raises ``ProtocolFault`` naming the first wrong field."""
    layout = _LAYOUTS[kind]
    for name in wire:
        if name not in layout and name != "type":
            raise ProtocolFault(f"{what} carries the unknown field {name!r}; known are {', '.join(layout)}")
    values = {}
    for name, (check, annotation, required) in layout.items():
        value = wire.get(name, MISSING)
        if value is MISSING:
            if required:
                raise ProtocolFault(f"{what} lacks the field {name!r}, which must be {annotation}")
        elif not check(value):
            raise ProtocolFault(f"{what} field {name!r} is {_shown(value)}, which is not {annotation}")
        else:
            values[name] = value
    return kind(**values)


def _decode_tagged(payload: bytes, kinds: Mapping[str, type[Message]], role: str) -> Message:
    wire = decode_object(payload, role)
    tag = wire.get("type")
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise ProtocolFault(f"{role} type {_shown(tag)} is unknown; known are {', '.join(kinds)}")
    return decode_fields(kind, wire, kind.TYPE)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _U64_MAX


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _is_text_map(value: Any) -> bool:
    return type(value) is dict and all(type(item) is str for item in value.values())


def _is_counts(value: Any) -> bool:
    return type(value) is list and all(map(_is_count, value))


def _is_items(value: Any) -> bool:
    return type(value) is list and all(map(_is_item, value))


def _is_item(value: Any) -> bool:
    return type(value) is dict and len(value) == 2 and _is_text(value.get("id")) and _is_count(value.get("n_tokens"))


def _is_phase(value: Any) -> bool:
    return value in ("setup", "inference", "control") and type(value) is str


#: Annotation of a message field -> the check of its JSON value.
_CHECKS: Mapping[str, Check] = {
    "str": _is_text,
    "int": _is_count,
    "bool": _is_flag,
    "float": _is_number,
    "Mapping[str, Any]": _is_object,
    "Mapping[str, str]": _is_text_map,
    "list[int]": _is_counts,
    "list[dict[str, Any]]": _is_items,
    "Literal['setup', 'inference', 'control']": _is_phase,
}


def _layout(kind: type[Message]) -> dict[str, tuple[Check, str, bool]]:
    layout = {}
    for item in fields(kind):
        annotation = str(item.type).replace('"', "'").removesuffix(" | None")
        required = item.default is MISSING and item.default_factory is MISSING
        layout[item.name] = (_CHECKS[annotation], annotation, required)
    return layout


_LAYOUTS = {kind: _layout(kind) for kind in (Hello, HelloAck, *REQUESTS.values(), *RESPONSES.values())}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
