from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.errors import EXCEPTIONS, EncodeFailed, InvalidRequest, QueueFull, SynapseError, UnknownMethod
from synapse_host.operations.registry import RawVectors, Reply
from synapse_host.server.envelope import (
    Hello,
    Request,
    VectorForm,
    decode_frame,
    encode_error,
    encode_reply,
    is_channel_error,
)
from synapse_host.server.malformed import MalformedFrame

REQUEST = Request(7, "embed.query", {})


def _body(frame: bytes) -> dict[str, object]:
    (length,) = struct.unpack("<I", frame[:4])
    assert length == len(frame) - 4
    return dict(orjson.loads(frame[4:]))


def _reply_bytes(reply: Reply, vectors: VectorForm = "json", max_frame: int = 1 << 20) -> list[bytes]:
    parts = encode_reply(REQUEST, reply, vectors=vectors, module_generation=4, max_frame=max_frame)
    return [bytes(part) for part in parts]


def test_request_is_read_whole() -> None:
    frame = (
        b'{"id": [1, null], "method": "embed.query", "params": {"text": "\\ud83d\\ude00"}, "scope": {"flow_id": "f1"}}'
    )
    assert decode_frame(frame) == Request([1, None], "embed.query", {"text": "\U0001f600"}, "f1")


def test_params_and_scope_may_be_left_out() -> None:
    assert decode_frame(b'{"id": "a", "method": "models.list"}') == Request("a", "models.list", {})


@pytest.mark.parametrize(
    ("frame", "form"),
    [(b'{"hello": {"api": 1, "vectors": "f32"}}', "f32"), (b'{"hello": {"api": 1}}', "json")],
)
def test_hello_is_read(frame: bytes, form: VectorForm) -> None:
    assert decode_frame(frame) == Hello(form)


@pytest.mark.parametrize(
    ("frame", "request_id", "words"),
    [
        (b"{", None, "not UTF-8 JSON"),
        (b"", None, "not UTF-8 JSON"),
        (b'{"id": 1, "method": "x", "params": {"text": "\xff\xfe"}}', None, "not UTF-8 JSON"),
        (b'{"id": 1, "method": "x", "params": {"n": NaN}}', None, "not UTF-8 JSON"),
        (b"[1]", None, "an array"),
        (b'{"id": 1}', 1, "method is null or missing"),
        (b'{"id": 1, "method": 5}', 1, "method is a number"),
        (b'{"id": 1, "method": "x", "params": [1]}', 1, "params is an array"),
        (b'{"id": 1, "method": "x", "parms": {}}', 1, "'parms'"),
        (b'{"id": 1, "method": "x", "scope": "f"}', 1, "scope is a string"),
        (b'{"id": 1, "method": "x", "scope": {"flow": "f"}}', 1, "scope.flow"),
        (b'{"id": 1, "method": "x", "scope": {"flow_id": ""}}', 1, "scope.flow_id is ''"),
        (b'{"hello": {"api": 2}}', None, "hello.api is 2"),
        (b'{"hello": {"api": true}}', None, "hello.api is True"),
        (b'{"hello": {"api": 1, "vectors": "f16"}}', None, "'f16'"),
        (b'{"hello": {"api": 1}, "id": 3}', None, "nothing else"),
    ],
)
def test_malformed_frame_is_named(frame: bytes, request_id: object, words: str) -> None:
    with pytest.raises(MalformedFrame) as caught:
        decode_frame(frame)
    assert caught.value.id == request_id
    assert words in caught.value.error.message


@pytest.mark.parametrize(
    ("document", "request_id", "words"),
    [
        (
            {"id": 9, "method": "m", "params": {"text": "a\ud800b"}},
            9,
            "params.text holds a lone surrogate U+D800 at character 1",
        ),
        (
            {"id": "q", "method": "m", "params": {"items": [{"id": "a", "text": "x"}, {"id": "b", "text": "\udc00"}]}},
            "q",
            "params.items[1].text (item 'b') holds a lone surrogate U+DC00",
        ),
        ({"id": "\ud800", "method": "m"}, None, "id holds a lone surrogate"),
        ({"id": 2, "method": "m", "params": {"\udfff": 1}}, 2, "a key of params holds a lone surrogate"),
    ],
)
def test_lone_surrogate_is_placed_and_answered_to_its_request(document: object, request_id: object, words: str) -> None:
    with pytest.raises(MalformedFrame) as caught:
        decode_frame(json.dumps(document).encode())
    assert caught.value.id == request_id
    assert words in caught.value.error.message


@pytest.mark.parametrize("depth", [400, 900, 200_000])
def test_deep_nesting_around_a_surrogate_is_refused_not_fatal(depth: int) -> None:
    frame = b'{"id": 1, "method": "m", "params": {"x": ' + b"[" * depth + b'"\\ud800"' + b"]" * depth + b"}}"
    with pytest.raises(MalformedFrame):
        decode_frame(frame)


@pytest.mark.parametrize(
    ("error", "channel"),
    [
        (UnknownMethod("no"), True),
        (InvalidRequest("malformed"), True),
        (InvalidRequest("semantic", details={"item_id": "a"}), False),
        (QueueFull("full"), False),
        (EXCEPTIONS["unknown_model"]("none", details={"model_id": "m"}), False),
        (EncodeFailed("broken"), True),
    ],
)
def test_error_travels_where_reading_16_says(error: SynapseError, channel: bool) -> None:
    body = _body(encode_error(5, error, module_generation=4, max_frame=4096))
    assert body["id"] == 5
    if channel:
        assert body == {"id": 5, "error": error.to_wire()}
    else:
        assert body == {"id": 5, "result": {"module_generation": 4, "error": error.to_wire()}}


def test_error_that_orjson_cannot_write_is_still_answered() -> None:
    error = InvalidRequest("x", details={"value": {1, 2}})
    body = _body(encode_error(None, error, module_generation=1, max_frame=4096))
    assert "'code': 'invalid_request'" in str(body)


def test_json_vectors_are_exactly_the_floats() -> None:
    values = (0.1, -1.5e-7, 3.0, 1 / 3)
    data = struct.pack("<4f", *values)
    reply = Reply({"vectors": [{"id": "a"}, {"id": "b"}]}, RawVectors(2, 2, data))
    (frame,) = _reply_bytes(reply)
    rows = [item["vector"] for item in orjson.loads(frame[4:])["result"]["vectors"]]
    assert struct.pack("<4f", *rows[0], *rows[1]) == data


def test_raw_vectors_follow_in_a_frame_of_their_own() -> None:
    data = struct.pack("<4f", 1, 2, 3, 4)
    reply = Reply({"vectors": [{"id": "a"}, {"id": "b"}]}, RawVectors(2, 2, memoryview(data)))
    head, header, raw = _reply_bytes(reply, "f32")
    assert _body(head)["result"] == {
        "vectors": [{"id": "a"}, {"id": "b"}],
        "module_generation": 4,
        "raw": {"rows": 2, "dims": 2},
    }
    assert (header, raw) == (struct.pack("<I", 16), data)


def test_generation_of_the_handler_is_kept() -> None:
    (frame,) = _reply_bytes(Reply({"module_generation": 99}))
    assert _body(frame)["result"] == {"module_generation": 99}


@pytest.mark.parametrize("form", ["json", "f32"])
@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply({"vectors": [{"id": "a"}]}, RawVectors(2, 1, bytes(8))), "1 items with 2 rows"),
        (Reply({"vectors": [{"id": "a"}]}, RawVectors(1, 2, bytes(4))), "in 4 bytes"),
        (Reply({"value": {1, 2}}), "cannot be written as JSON"),
        (Reply({"value": "x" * 2000}), "bytes and a frame 1024"),
    ],
)
def test_reply_that_cannot_be_said_is_encode_failed(reply: Reply, words: str, form: VectorForm) -> None:
    with pytest.raises(EncodeFailed, match=r"embed\.query") as caught:
        _reply_bytes(reply, form, max_frame=1024)
    assert words in caught.value.message


def test_vector_that_is_not_finite_never_becomes_null() -> None:
    data = struct.pack("<2f", 1.0, float("nan"))
    with pytest.raises(EncodeFailed, match="not finite"):
        _reply_bytes(Reply({"vectors": [{"id": "a"}]}, RawVectors(1, 2, data)))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [33, 1000])
def test_an_id_too_deep_to_send_back_is_refused_and_left_out(opening: bytes, closing: bytes, depth: int) -> None:
    frame = b'{"id":' + opening * depth + b"1" + closing * depth + b',"method":"models.list"}'
    with pytest.raises(MalformedFrame, match="deeper than 32") as refused:
        decode_frame(frame)
    assert _body(encode_error(refused.value.id, refused.value.error, module_generation=1, max_frame=4096))["id"] is None


def test_an_id_of_the_greatest_depth_comes_back() -> None:
    frame = b'{"id":' + b"[" * 32 + b"]" * 32 + b',"method":"models.list"}'
    request = decode_frame(frame)
    assert isinstance(request, Request)
    assert _body(encode_error(request.id, QueueFull("busy"), module_generation=1, max_frame=4096))["id"] == request.id


@pytest.mark.parametrize(("request_id", "size"), [("x" * 1023, 1025), ("\x00" * 200, 1202), ([7] * 512, 1025)])
def test_an_id_too_long_to_send_back_is_refused_and_left_out(request_id: Any, size: int) -> None:
    frame = json.dumps({"id": request_id, "method": "models.list"}).encode()
    with pytest.raises(MalformedFrame, match=f"id takes {size} bytes and at most 1024") as refused:
        decode_frame(frame)
    assert refused.value.id is None
    with pytest.raises(MalformedFrame, match="lone surrogate") as refused:
        decode_frame(frame[:-1] + b', "scope": "\\ud800"}')
    assert refused.value.id is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=40), inner, max_size=4),
    max_leaves=8,
)


@given(
    request_id=_JSON,
    message=st.text(max_size=3000),
    details=st.none() | st.dictionaries(st.text(max_size=9), st.text(max_size=9000), max_size=2),
    kind=st.sampled_from([QueueFull, InvalidRequest, EXCEPTIONS["engine_crashed"]]),
)
def test_no_error_passes_the_smallest_frame_whatever_it_says_and_whoever_asked(
    request_id: Any, message: str, details: Mapping[str, str] | None, kind: type[SynapseError]
) -> None:
    try:
        asked = decode_frame(json.dumps({"id": request_id, "method": "m"}).encode())
    except MalformedFrame as fault:
        answered, error = fault.id, fault.error
    else:
        assert isinstance(asked, Request)
        answered, error = asked.id, kind(message, details=details)
    frame = encode_error(answered, error, module_generation=2**53, max_frame=4096)
    assert len(frame) <= 4 + 4096
    body = orjson.loads(frame[4:])
    assert body["id"] == answered
    said = body["error"] if is_channel_error(error) else body["result"]["error"]
    assert said["code"] == error.code
    assert error.message.startswith(said["message"])
