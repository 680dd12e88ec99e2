from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import (
    REQUESTS,
    RESPONSES,
    EmbedBatchRequest,
    Err,
    Hello,
    HelloAck,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    ProgressReport,
    Shutdown,
    Unload,
    Unloaded,
    VectorsHeader,
)

REQUEST_EXAMPLES: list[Message] = [
    Load("load-1", "/m.safetensors", "ab", "safetensors-package", {"dtype": "f32"}),
    Load("load-2", "", "", "", {}),
    EmbedBatchRequest("embed-1", "model-1", "mean", True, [{"id": "ä\n\x00", "n_tokens": 3}]),
    Unload("unload-1", "model-1"),
    Ping("ping-1"),
    Shutdown(),
]
RESPONSE_EXAMPLES: list[Message] = [
    Loaded("load-1", "model-1", 384, 12, [16, 32]),
    Loaded("load-1", "model-1", 384, 0),
    VectorsHeader("embed-1", 384, 2),
    Unloaded("unload-1"),
    Pong("ping-1", 120, 1, 0.5),
    Pong("ping-1", 120, 1),
    ProgressReport("embed-1", 7, "inference"),
    Err("oom", "no memory", "load-1"),
    Err("invalid_request", "unreadable"),
]


@pytest.mark.parametrize("message", REQUEST_EXAMPLES, ids=lambda m: m.TYPE)
def test_every_request_comes_back(message: Message) -> None:
    assert codec.decode_request(codec.encode(message)) == message


@pytest.mark.parametrize("message", RESPONSE_EXAMPLES, ids=lambda m: m.TYPE)
def test_every_response_comes_back(message: Message) -> None:
    assert codec.decode_response(codec.encode(message)) == message


def test_examples_cover_every_message() -> None:
    assert {type(m) for m in REQUEST_EXAMPLES} == set(REQUESTS.values())
    assert {type(m) for m in RESPONSE_EXAMPLES} == set(RESPONSES.values())


def test_absent_optionals_are_left_out_not_null() -> None:
    assert b"null" not in codec.encode(Pong("ping-1", 1, 0))
    hello = Hello(3, "n", {"engine": "e", "version": "1", "build_flags": {}}, 1, 4096)
    assert set(json.loads(codec.encode(hello))) == {"v", "nonce", "engine", "pid", "max_frame"}


def test_handshake_frames_come_back() -> None:
    hello = Hello(3, "n", {"engine": "e"}, 1, 4096, "aa", "r1", {"widths": [256], "max_rows": 8})
    assert codec.decode_hello(codec.encode(hello)) == hello
    ack = HelloAck(3, accept=True, max_frame=4096)
    assert codec.decode_hello_ack(codec.encode(ack)) == ack


WRONG: dict[str, Any] = {
    "str": 7,
    "int": True,
    "bool": 1,
    "float": "0.5",
    "Mapping[str, Any]": [],
    "Mapping[str, str]": {"dtype": 1},
    "list[int]": [1, True],
    "list[dict[str, Any]]": [{"id": "a", "n_tokens": "3"}],
    "Literal['setup', 'inference', 'control']": "waiting",
}


def _wrong_fields() -> list[tuple[Message, str]]:
    cases = []
    for message in (*REQUEST_EXAMPLES, *RESPONSE_EXAMPLES):
        cases += [(message, item.name) for item in fields(message)]
    return cases


@pytest.mark.parametrize(("message", "name"), _wrong_fields(), ids=lambda v: v if isinstance(v, str) else v.TYPE)
def test_wrong_type_names_field_and_value(message: Message, name: str) -> None:
    annotation = next(str(item.type) for item in fields(message) if item.name == name)
    wrong = WRONG[annotation.replace('"', "'").removesuffix(" | None")]
    payload = json.dumps(message.to_wire() | {name: wrong}).encode()
    decode = codec.decode_request if message.TYPE in REQUESTS else codec.decode_response
    with pytest.raises(ProtocolFault) as refused:
        decode(payload)
    assert name in str(refused.value)
    assert repr(wrong) in str(refused.value)


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        ({"type": "PING"}, "'req_id'"),
        ({"type": "PING", "req_id": "p", "extra": 1}, "'extra'"),
        ({"type": "PING", "req_id": None}, "None"),
        ({"type": "RESTART", "req_id": "p"}, "'RESTART'"),
        ({"type": ["PING"], "req_id": "p"}, "['PING']"),
        ({"req_id": "p"}, "None"),
    ],
)
def test_malformed_request_is_named(wire: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolFault) as refused:
        codec.decode_request(json.dumps(wire).encode())
    assert said in str(refused.value)


@pytest.mark.parametrize("number", ["3.0", "-1", "18446744073709551616", "1e3", "NaN", "true", '"3"'])
def test_a_count_is_a_plain_integer(number: str) -> None:
    payload = f'{{"type":"VECTORS","req_id":"e","dims":{number},"n":1}}'.encode()
    with pytest.raises(ProtocolFault):
        codec.decode_response(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"type":"PING","req_id":"p"', b"[" * 100_000, '{"a":1}'.encode("utf-16")],
    ids=["empty", "open", "list", "number", "not utf-8", "cut", "deep", "utf-16"],
)
def test_bytes_that_are_no_object_are_a_fault(payload: bytes) -> None:
    with pytest.raises(ProtocolFault):
        codec.decode_request(payload)


def test_infinite_share_is_refused() -> None:
    payload = b'{"type":"PONG","req_id":"p","rss_mb":1,"models_loaded":0,"placement_share":1e999}'
    with pytest.raises(ProtocolFault, match="placement_share"):
        codec.decode_response(payload)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_a_fault(payload: bytes) -> None:
    for decode in (codec.decode_request, codec.decode_response, codec.decode_hello, codec.decode_hello_ack):
        with pytest.raises(ProtocolFault):
            decode(payload)
