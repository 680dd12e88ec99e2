"""Control messages to JSON bytes and back, strictly: every field is checked for presence and exact type.

Pure. A boolean is never an integer here, 3.0 never 3, and an unknown field is a fault: both sides of a connection are
released together, so a surprise means one of them is broken.

Four messages are written or read for one short query, so a message with nothing wrong is dealt with in a few steps:
orjson makes or reads its JSON in a fifth of the time the standard library takes. Everything else is the standard
library's: half a surrogate pair, which a path may hold, and every refusal, which then shows numbers as they were sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, TypeVar

import orjson

from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.field_checks import FIELD_CHECKS, Check, FieldCheck
from synapse_host.worker_protocol.messages import REQUESTS, RESPONSES, Hello, HelloAck, Message

#: How much of an offending value an error message repeats.
_SHOWN_CHARS = 80


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

M = TypeVar("M", bound=Message)


class _Layout(NamedTuple):
    """The fields of one kind of message, in their order: the check of each, and whether it must be there."""

    fields: Mapping[str, tuple[FieldCheck, bool]]
    accepts: tuple[Check, ...]
    #: The values of all fields of a message.
    values_of: Callable[[Message], tuple[Any, ...]]

    def takes(self, values: tuple[Any, ...]) -> bool:
        """Whether there is a value for every field and nothing is wrong with any."""
        # Written out: a generator would cost as much as the checks.
        for accepts, value in zip(self.accepts, values, strict=True):  # noqa: SIM110
            if not accepts(value):
                return False
        return True


def encode(message: Message) -> bytes:
    """The JSON bytes of ``message``, without a frame header."""
    wire = message.to_wire()
    try:
        return orjson.dumps(wire)
    except orjson.JSONEncodeError:
        return _encoder.encode(wire).encode()


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
    if len(wire) == len(layout.fields) + ("type" in wire):
        values = tuple([wire.get(name, MISSING) for name in layout.fields])
        if layout.takes(values):
            return kind(*values)
    return kind(**_checked_fields(layout.fields, wire, what))


def _checked_fields(
    layout: Mapping[str, tuple[FieldCheck, bool]], wire: Mapping[str, Any], what: str
) -> dict[str, Any]:
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
    return values


def check_outgoing(message: Message) -> None:
    """Raise ``ProtocolFault`` when ``message`` is one the other side would refuse, before a byte of it is sent."""
    layout = _LAYOUTS[type(message)]
    values = layout.values_of(message)
    if layout.takes(values):
        return
    for (name, (check, required)), value in zip(layout.fields.items(), values, strict=True):
        if not (check.accepts(value) or (value is None and not required)):
            raise _wrong_field(message.TYPE, name, value, check)


def _wrong_field(what: str, name: str, value: Any, check: FieldCheck) -> ProtocolFault:
    return ProtocolFault(f"{what} field {name!r} is {shown(value)}, which is not {check.words}")


def _decode_tagged(payload: bytes, kinds: Mapping[str, type[Message]], role: str) -> Message:
    try:
        wire = orjson.loads(payload)
        if type(wire) is dict:
            return _message_of(wire, kinds, role)
    except (orjson.JSONDecodeError, ProtocolFault):
        pass
    return _message_of(decode_object(payload, role), kinds, role)


def _message_of(wire: Mapping[str, Any], kinds: Mapping[str, type[Message]], role: str) -> Message:
    tag = wire.get("type")
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise ProtocolFault(f"{role} type {shown(tag)} is unknown; known are {', '.join(kinds)}")
    return decode_fields(kind, wire, kind.TYPE)


def _layout(kind: type[Message]) -> _Layout:
    layout = {}
    for item in fields(kind):
        required = item.default is MISSING and item.default_factory is MISSING
        layout[item.name] = (FIELD_CHECKS[str(item.type).removesuffix(" | None")], required)
    return _layout_of(layout)


def _layout_of(layout: Mapping[str, tuple[FieldCheck, bool]]) -> _Layout:
    return _Layout(layout, tuple(check.accepts for check, _ in layout.values()), _getter(tuple(layout)))


def _getter(names: tuple[str, ...]) -> Callable[[Message], tuple[Any, ...]]:
    """What reads the attributes ``names``; of less than two, ``attrgetter`` would give no tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


_LAYOUTS = {kind: _layout(kind) for kind in (Hello, HelloAck, *REQUESTS.values(), *RESPONSES.values())}


def shown(value: Any) -> str:
    """``value`` as a message about it repeats it: cut, for its length is the sender's to choose."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
