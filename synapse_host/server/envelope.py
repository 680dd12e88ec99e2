"""Requests from bytes and replies to bytes, on the consumer socket (contract sections 1 and 2, design section 6).

Pure. Which errors are channel-level and which ride inside ``result`` is decided here alone (reading 16).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from synapse_host.errors import EncodeFailed, InvalidRequest, SynapseError
from synapse_host.framing import Buffer, FrameTooLarge, frame_header
from synapse_host.operations.quoting import cut, quoted
from synapse_host.operations.registry import RawVectors, Reply
from synapse_host.server.malformed import MAX_ID_BYTES, MalformedFrame, explain, kind_of
from synapse_host.values import value_object

#: An id may be any JSON value; the writer of JSON gives up on nesting the reader still takes.
MAX_ID_DEPTH = 32
#: Characters of a message, each of which takes six bytes at most, in an error that has to fit the smallest frame.
_FEWER_WORDS = 400
API_VERSION = 1
VectorForm = Literal["json", "f32"]

_FIELDS = frozenset({"id", "method", "params", "scope"})
_F32_BYTES = 4


@value_object
class Request:
    """One request. ``id`` is echoed as it came."""

    id: Any
    method: str
    params: Mapping[str, Any]
    flow_id: str | None = None


@value_object
class Hello:
    """The optional first frame."""

    vectors: VectorForm


def decode_frame(frame: bytes) -> Request | Hello:
    """Read one frame.

    Raises:
        MalformedFrame: not UTF-8 JSON, a lone surrogate, or not the shape of a request; the message names the place.

    """
    try:
        document = orjson.loads(frame)
    except orjson.JSONDecodeError as fault:
        raise explain(frame, fault) from None
    if type(document) is not dict:
        raise MalformedFrame(None, f"a request is a JSON object, not {kind_of(document)}; send {{id, method, params}}")
    if "hello" in document:
        return _hello(document)
    return _request(document)


def encode_reply(
    request: Request, reply: Reply, *, vectors: VectorForm, module_generation: int, max_frame: int
) -> list[Buffer]:
    """The bytes of one answer: one frame, or two where raw vectors were agreed on.

    Raises:
        EncodeFailed: the payload holds something JSON cannot say, the vectors do not match the items, or the
            reply is larger than a frame.

    """
    payload = reply.payload
    payload.setdefault("module_generation", module_generation)
    numbers = reply.vectors
    if numbers is not None:
        _check_vectors(request.method, payload, numbers)
        if vectors == "f32":
            payload["raw"] = {"rows": numbers.rows, "dims": numbers.dims}
        else:
            _fill_in(request.method, payload["vectors"], numbers)
    try:
        body = orjson.dumps({"id": request.id, "result": payload}, option=orjson.OPT_SERIALIZE_NUMPY)
        parts: list[Buffer] = [frame_header(len(body), max_frame) + body]
        if numbers is not None and vectors == "f32":
            size = memoryview(numbers.data).nbytes
            parts += [frame_header(size, max_frame), numbers.data]
    except FrameTooLarge as fault:
        raise EncodeFailed(
            f"the reply to {request.method} takes {fault.length} bytes and a frame {fault.limit}; ask for less at once"
        ) from None
    except TypeError as fault:
        raise EncodeFailed(f"the reply to {request.method} cannot be written as JSON: {fault}; report it") from None
    return parts


def encode_error(request_id: Any, error: SynapseError, *, module_generation: int, max_frame: int) -> bytes:
    """The frame of one refusal, on the channel or inside ``result`` as reading 16 says.

    One that would pass ``max_frame`` is said without its details and in fewer words: the smallest frame a host may be
    set to has room for those beside any id.
    """
    wire, channel = error.to_wire(), is_channel_error(error)
    body = _error_body(request_id, wire, None if channel else module_generation)
    if len(body) > max_frame:
        wire.pop("details", None)
        wire["message"] = wire["message"][:_FEWER_WORDS]
        body = _error_body(request_id, wire, None if channel else module_generation)
    return frame_header(len(body), max_frame) + body


def _error_body(request_id: Any, wire: Mapping[str, Any], module_generation: int | None) -> bytes:
    answer: dict[str, Any] = {"id": request_id, "error": wire}
    if module_generation is not None:
        answer = {"id": request_id, "result": {"module_generation": module_generation, "error": wire}}
    try:
        return orjson.dumps(answer)
    except TypeError:
        # A message may quote what the caller sent, and an id may be anything JSON's reader accepts and orjson does not.
        return json.dumps(answer, default=str).encode()


def encode_hello(*, version: str, module_generation: int, max_frame: int, vectors: VectorForm) -> bytes:
    """The answer to a hello."""
    said = {
        "api": API_VERSION,
        "version": version,
        "module_generation": module_generation,
        "max_frame": max_frame,
        "vectors": vectors,
    }
    body = orjson.dumps({"hello": said})
    return frame_header(len(body), len(body)) + body


def is_channel_error(error: SynapseError) -> bool:
    """Whether an error stands beside ``id`` instead of inside ``result``."""
    return error.channel or (isinstance(error, InvalidRequest) and error.details is None)


def _request(document: dict[str, Any]) -> Request:
    request_id = document.get("id")
    if type(request_id) is not int:
        _check_id(request_id)
    method = document.get("method")
    if type(method) is not str:
        raise MalformedFrame(request_id, f"method is {kind_of(method)} but must be a string naming the method")
    params = document.get("params", {})
    if type(params) is not dict:
        raise MalformedFrame(request_id, f"params is {kind_of(params)} but must be an object")
    unknown = document.keys() - _FIELDS
    if unknown:
        raise MalformedFrame(
            request_id, f"{quoted(min(unknown))} is no field of a request; send {', '.join(sorted(_FIELDS))}"
        )
    scope = document.get("scope")
    return Request(request_id, method, params, None if scope is None else _flow_id(request_id, scope))


def _check_id(request_id: Any) -> None:
    if isinstance(request_id, list | dict) and _deeper_than(request_id, MAX_ID_DEPTH):
        raise MalformedFrame(
            None, f"id is nested deeper than {MAX_ID_DEPTH} and could not be sent back; use a number or a string"
        )
    size = len(orjson.dumps(request_id))
    if size > MAX_ID_BYTES:
        raise MalformedFrame(
            None, f"id takes {size} bytes and at most {MAX_ID_BYTES} are sent back; use a number or a short string"
        )


def _deeper_than(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(each, levels - 1) for each in inner)


def _flow_id(request_id: Any, scope: object) -> str | None:
    if type(scope) is not dict:
        raise MalformedFrame(request_id, f"scope is {kind_of(scope)} but must be an object with flow_id")
    unknown = scope.keys() - {"flow_id"}
    if unknown:
        raise MalformedFrame(request_id, f"scope.{cut(min(unknown))} is no field of a scope; send flow_id alone")
    flow_id = scope.get("flow_id")
    if flow_id is None:
        return None
    if type(flow_id) is not str or not flow_id:
        raise MalformedFrame(request_id, f"scope.flow_id is {quoted(flow_id)} but must be a non-empty string")
    return flow_id


def _hello(document: dict[str, Any]) -> Hello:
    hello = document["hello"]
    if document.keys() != {"hello"} or type(hello) is not dict or hello.keys() - {"api", "vectors"}:
        raise MalformedFrame(None, 'a hello is {"hello": {"api": 1, "vectors": "f32" or "json"}} and nothing else')
    api = hello.get("api")
    if type(api) is not int or api != API_VERSION:
        raise MalformedFrame(
            None, f"hello.api is {quoted(api)} and this host speaks {API_VERSION}; use a client of that API"
        )
    vectors = hello.get("vectors", "json")
    if vectors not in ("json", "f32"):
        raise MalformedFrame(None, f"hello.vectors is {quoted(vectors)} but must be 'f32' or 'json'")
    return Hello(vectors)


def _check_vectors(method: str, payload: Mapping[str, Any], numbers: RawVectors) -> None:
    items = len(payload.get("vectors", ()))
    size = memoryview(numbers.data).nbytes
    if items != numbers.rows or size != numbers.rows * numbers.dims * _F32_BYTES:
        raise EncodeFailed(
            f"{method} answered {items} items with {numbers.rows} rows of {numbers.dims} numbers in {size} bytes; "
            "report it"
        )


def _fill_in(method: str, items: list[dict[str, Any]], numbers: RawVectors) -> None:
    # numpy costs 55 ms and 30 MB of a host's start; only consumers without raw vectors need it.
    import numpy as np

    rows = np.frombuffer(numbers.data, dtype="<f4").reshape(numbers.rows, numbers.dims)
    if not np.isfinite(rows).all():
        # orjson would write null where a number is not finite.
        raise EncodeFailed(f"{method} answered a vector that is not finite; report it")
    for item, row in zip(items, rows, strict=True):
        item["vector"] = row
