"""Control messages to JSON bytes and back, strictly: every field is checked for presence and exact type.

Stdlib only, pure. A boolean is never an integer here, 3.0 never 3, and an unknown field is a fault: both sides of a
connection are released together, so a surprise means one of them is broken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, NoReturn, TypeVar

from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.field_checks import FIELD_CHECKS, FieldCheck
from synapse_host.worker_protocol.messages import REQUESTS, RESPONSES, Hello, HelloAck, Message

#: How much of an offending value an error message repeats.
_SHOWN_CHARS = 80


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

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
        raise ProtocolFault(f"{what} frame holds {shown(value)}, not a JSON object")
    return value


def decode_fields(kind: type[M], wire: Mapping[str, Any], what: str) -> M:
    """A ``kind`` from the fields of ``wire``; raises ``ProtocolFault`` naming the first wrong field."""
    layout = _LAYOUTS[kind]
    for name in wire:
        if name not in layout and name != "type":
            raise ProtocolFault(f"{what} carries the unknown field {shown(name)}; known are {', '.join(layout)}")
    values = {}
    for name, (check, required) in layout.items():
        value = wire.get(name, MISSING)
        if value is MISSING:
            if required:
                raise ProtocolFault(f"{what} lacks the field {name!r}, which must be {check.words}")
        elif not check.accepts(value):
            raise _wrong_field(what, name, value, check)
        else:
            values[name] = value
    return kind(**values)


def check_outgoing(message: Message) -> None:
    """Raise ``ProtocolFault`` when ``message`` is one the other side would refuse, before a byte of it is sent."""
    for name, (check, required) in _LAYOUTS[type(message)].items():
        value = getattr(message, name)
        if not (check.accepts(value) or (value is None and not required)):
            raise _wrong_field(message.TYPE, name, value, check)


def _wrong_field(what: str, name: str, value: Any, check: FieldCheck) -> ProtocolFault:
    return ProtocolFault(f"{what} field {name!r} is {shown(value)}, which is not {check.words}")


def _decode_tagged(payload: bytes, kinds: Mapping[str, type[Message]], role: str) -> Message:
    wire = decode_object(payload, role)
    tag = wire.get("type")
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise ProtocolFault(f"{role} type {shown(tag)} is unknown; known are {', '.join(kinds)}")
    return decode_fields(kind, wire, kind.TYPE)


def _layout(kind: type[Message]) -> dict[str, tuple[FieldCheck, bool]]:
    """Field name -> its check, and whether it must be there."""
    layout = {}
    for item in fields(kind):
        required = item.default is MISSING and item.default_factory is MISSING
        layout[item.name] = (FIELD_CHECKS[str(item.type).removesuffix(" | None")], required)
    return layout


_LAYOUTS = {kind: _layout(kind) for kind in (Hello, HelloAck, *REQUESTS.values(), *RESPONSES.values())}


def shown(value: Any) -> str:
    """``value`` as a message about it repeats it: cut, for its length is the sender's to choose."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
