"""Every message there and back, and every field of every message in every wrong form."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synapse_host.testing.fuzz.message_strategies import SAMPLES, UNLAWFUL, messages_of, sample_of, shape_of
from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.field_checks import FIELD_CHECKS
from synapse_host.worker_protocol.messages import (
    REQUESTS,
    RESPONSES,
    EmbedBatchRequest,
    Generate,
    Hello,
    HelloAck,
    Load,
    Message,
    Pong,
    Text,
)

KINDS: list[type[Message]] = [Hello, HelloAck, *REQUESTS.values(), *RESPONSES.values()]
FIELDS = [(kind, item.name) for kind in KINDS for item in fields(kind)]


def decoder_of(kind: type[Message]) -> Callable[[bytes], Message]:
    handshake = {Hello: codec.decode_hello, HelloAck: codec.decode_hello_ack}
    return handshake.get(kind) or (codec.decode_request if kind.TYPE in REQUESTS else codec.decode_response)


def named(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize("kind", KINDS, ids=named)
@settings(max_examples=40)
@given(data=st.data())
def test_every_message_comes_back(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    codec.check_outgoing(message)
    assert decoder_of(kind)(codec.encode(message)) == message


def test_a_path_that_is_no_text_comes_back() -> None:
    load = Load("r", os.fsdecode(b"/models/\xff.safetensors"), "0" * 64, "safetensors")
    payload = codec.encode(load)
    payload.decode()
    assert codec.decode_request(payload) == load


def test_a_refusal_shows_the_number_that_was_sent() -> None:
    sent = codec.encode(Generate("g", "m", 1)).replace(b'"max_tokens":1', b'"max_tokens":123456789012345678901')
    with pytest.raises(ProtocolFault, match="'max_tokens' is 123456789012345678901, which is not an integer"):
        codec.decode_request(sent)


def test_the_vocabulary_is_complete() -> None:
    """Original facts 1.2 and 1.3, with the names of reading "Packed", and the self-check, an addition of ours."""
    assert list(REQUESTS) == [
        *("LOAD", "EMBED_BATCH", "RERANK", "RERANK_SEQUENCES", "GENERATE", "ANE_ADMIT_SHAPE", "ANE_EVICT_SHAPE"),
        *("PACKED_ADMIT", "PACKED_EVICT", "SELF_CHECK", "UNLOAD", "PING", "SHUTDOWN"),
    ]
    assert list(RESPONSES) == [
        *(
            "LOADED",
            "VECTORS",
            "SCORES",
            "TEXT",
            "ADMITTED",
            "EVICTED",
            "SELF_CHECKED",
            "UNLOADED",
            "PONG",
            "PROGRESS",
            "ERR",
        )
    ]
    raw = [kind.TYPE for kind in KINDS if kind.RAW]
    assert raw == ["EMBED_BATCH", "RERANK", "RERANK_SEQUENCES", "GENERATE", "VECTORS", "SCORES", "SELF_CHECKED"]


def test_absent_optionals_are_left_out_not_null() -> None:
    assert b"null" not in codec.encode(Pong("ping-1", 1, 0))
    assert "generated_token_ids" not in json.loads(codec.encode(Text("g", "", 1, 0, "stop")))
    hello = Hello(3, "n", {"engine": "e", "version": "1", "build_flags": {}}, 1, 4096)
    assert set(json.loads(codec.encode(hello))) == {"v", "nonce", "engine", "pid", "max_frame"}


def test_every_shape_of_a_field_has_wrong_values() -> None:
    assert set(UNLAWFUL) == set(SAMPLES) == set(FIELD_CHECKS)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=named)
def test_a_wrong_value_names_field_and_value(kind: type[Message], name: str) -> None:
    for wrong in UNLAWFUL[shape_of(kind, name)]:
        wire = sample_of(kind).to_wire() | {name: wrong}
        with pytest.raises(ProtocolFault) as refused:
            decoder_of(kind)(json.dumps(wire).encode())
        assert repr(name) in str(refused.value)
        assert repr(wrong)[:80] in str(refused.value)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=named)
def test_a_field_may_be_absent_only_where_it_is_optional(kind: type[Message], name: str) -> None:
    wire = sample_of(kind).to_wire()
    del wire[name]
    (field,) = (item for item in fields(kind) if item.name == name)
    if field.default is MISSING and field.default_factory is MISSING:
        with pytest.raises(ProtocolFault, match=f"lacks the field '{name}'"):
            decoder_of(kind)(json.dumps(wire).encode())
    else:
        assert decoder_of(kind)(json.dumps(wire).encode())


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_an_unknown_field_is_refused_and_not_repeated_at_length(kind: type[Message]) -> None:
    wire = sample_of(kind).to_wire() | {"surprise" * 1000: 1}
    with pytest.raises(ProtocolFault, match="unknown field 'surprise") as refused:
        decoder_of(kind)(json.dumps(wire).encode())
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        ({"type": "RESTART", "req_id": "p"}, "'RESTART'"),
        ({"type": "PONG", "req_id": "p", "rss_mb": 1, "models_loaded": 1}, "'PONG'"),
        ({"type": ["PING"], "req_id": "p"}, "['PING']"),
        ({"req_id": "p"}, "None"),
    ],
)
def test_an_unknown_type_is_named(wire: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolFault) as refused:
        codec.decode_request(json.dumps(wire).encode())
    assert said in str(refused.value)


@pytest.mark.parametrize("number", ["3.0", "-1", "18446744073709551616", "1e3", "NaN", "true", '"3"'])
def test_a_count_is_a_plain_integer(number: str) -> None:
    payload = f'{{"type":"VECTORS","req_id":"e","dims":{number},"n":1}}'.encode()
    with pytest.raises(ProtocolFault):
        codec.decode_response(payload)


@pytest.mark.parametrize("share", ["1e999", "NaN", "-Infinity", "-0.5", "1.5", "true"])
def test_a_share_is_from_none_to_all(share: str) -> None:
    payload = f'{{"type":"PONG","req_id":"p","rss_mb":1,"models_loaded":0,"placement_share":{share}}}'.encode()
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


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_a_fault(payload: bytes) -> None:
    for decode in (codec.decode_request, codec.decode_response, codec.decode_hello, codec.decode_hello_ack):
        with pytest.raises(ProtocolFault):
            decode(payload)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Generate("g", "m", 2**32), "max_tokens"),
        (Generate("g" * 65, "m", 1), "req_id"),
        (EmbedBatchRequest("e", "m", "mean", True, [{"id": "a", "n_tokens": -1}]), "items"),
        (EmbedBatchRequest("e", "m", "mean", 1, []), "normalize"),  # type: ignore[arg-type]
    ],
)
def test_what_the_other_side_would_refuse_is_refused_before_it_leaves(message: Message, said: str) -> None:
    with pytest.raises(ProtocolFault, match=f"{message.TYPE} field '{said}'"):
        codec.check_outgoing(message)
