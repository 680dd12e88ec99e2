"""Fuzzes everything that reads bytes of a peer without doing anything else: framing, codecs, handshake, reply checks.

Each target takes a ``FrameMaker`` and a tally, reads one or more frames, and raises ``AssertionError`` when a decoder
lets a fault pass, refuses what is lawful, or ends in any way but its own exception. The tally says what was reached.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from synapse_host.client.exchange import Exchange, Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.errors import QueueFull, SynapseError
from synapse_host.framing import HEADER_BYTES, FrameDecoder, FrameTooLarge
from synapse_host.server.envelope import Hello as ClientHello
from synapse_host.server.envelope import Request, decode_frame, encode_error
from synapse_host.server.malformed import MalformedFrame
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.reply_check import REPLIES, check_raw, check_reply
from synapse_host.testing.fuzz.message_strategies import SAMPLES, SELF_CHECKED_BYTES, sample_of
from synapse_host.testing.fuzz.mutated_frames import ODD_VALUES, FrameMaker, wire_bytes
from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.faults import HandshakeRefused, ProtocolFault
from synapse_host.worker_protocol.handshake import check_hello
from synapse_host.worker_protocol.messages import (
    REQUESTS,
    RESPONSES,
    Hello,
    HelloAck,
    Message,
    Scores,
    SelfChecked,
    VectorsHeader,
)

Tally = Counter[str]
Target = Callable[[FrameMaker, Tally], None]
Value = TypeVar("Value")

#: Longer than any message about a fault may be, however long what it complains of.
_MOST_SAID = 2200
_LIMIT = 4096
_HANDSHAKE = {Hello: codec.decode_hello, HelloAck: codec.decode_hello_ack}
_NONCE = SAMPLES["str"]


def fuzz_codec(maker: FrameMaker, tally: Tally) -> None:
    """One control frame to its decoder."""
    kind = maker.pick(_KINDS)
    decode, role = _DECODERS[kind]
    roll = maker.draw.random()
    if roll < 0.3:
        payload, lawful = wire_bytes(maker.lawful(kind)), True
    elif roll < 0.6:
        payload, lawful = wire_bytes(maker.with_one_fault(kind)), False
    else:
        wire = maker.wild(maker.lawful(kind)) if roll < 0.8 else maker.lawful(kind)
        payload, lawful = wire_bytes(wire), None
        payload = payload if roll < 0.8 else maker.broken(payload)
    message, fault = _attempt(lambda: decode(payload), ProtocolFault)
    if message is None:
        assert lawful is not True, f"{payload!r} was refused: {fault}"
        tally[f"{role} refused"] += 1
        return
    assert lawful is not False, f"{payload!r} was taken for {message}"
    codec.check_outgoing(message)
    assert decode(codec.encode(message)) == message
    tally[f"{role} {type(message).TYPE or type(message).__name__}"] += 1


def fuzz_handshake(maker: FrameMaker, tally: Tally) -> None:
    """One HELLO to the host's judgement of it."""
    wire = maker.lawful(Hello) | {"v": 3, "nonce": _NONCE}
    roll = maker.draw.random()
    if roll < 0.5:
        name = maker.draw.choice(("v", "nonce", "nonce", "manifest_digest", "kernel_revision", "max_frame"))
        wire[name] = maker.draw.choice((2, 4, 3.0, "3", "0123", "other", *ODD_VALUES[:20]))
    payload = wire_bytes(wire) if roll < 0.9 else maker.broken(wire_bytes(wire))
    expected = {"expected_manifest": SAMPLES["str"], "expected_kernel": SAMPLES["str"]}
    expected = expected if maker.draw.random() < 0.5 else dict.fromkeys(expected)
    accepted, refusal = _attempt(
        lambda: check_hello(payload, nonce=_NONCE, host_max_frame=8192, **expected), HandshakeRefused
    )
    if accepted is None:
        tally[f"hello {getattr(refusal, 'code', None)}"] += 1
        return
    hello, ack = accepted
    assert (hello.v, hello.nonce, ack.accept) == (3, _NONCE, True)
    assert ack.max_frame <= min(8192, hello.max_frame)
    assert expected["expected_kernel"] in (None, hello.kernel_revision)
    tally["hello accepted"] += 1


def fuzz_reply(maker: FrameMaker, tally: Tally) -> None:
    """One reply of any kind against one request of any kind."""
    request = _asked(maker)
    answered = REPLIES[type(request)] if maker.draw.random() < 0.75 else maker.pick(_RESPONSES)
    reply = _reply(maker, answered)
    fitting = bytes(_SAMPLED_RAW[answered]) if answered.RAW else None
    raw = maker.draw.choice((fitting, fitting, None, b"", bytes(4), bytes(12), bytes(16)))
    dims = maker.draw.choice((None, 3))

    def judge() -> bool:
        check_reply(request, reply, sent_bytes=8, dims=dims)
        check_raw(request, reply, raw)
        return True

    lawful, fault = _attempt(judge, WorkerRefusal, ProtocolFault)
    if isinstance(fault, WorkerRefusal):
        to_synapse_error(fault).to_wire()
        tally["reply ERR"] += 1
    elif fault is not None:
        tally["reply refused"] += 1
    else:
        assert lawful
        assert type(reply) is REPLIES[type(request)]
        assert getattr(reply, "req_id", None) == getattr(request, "req_id", None)
        tally[f"reply {reply.TYPE} of {request.TYPE}"] += 1


def fuzz_session(maker: FrameMaker, tally: Tally) -> None:
    """One frame of a client to the host's reading of it; whatever it is, an answer to it can be written."""
    wire: dict[str, Any] = {"id": maker.draw.choice((7, "a", None)), "method": "embed.query", "params": {"text": "ä"}}
    if maker.draw.random() < 0.3:
        wire = {"hello": {"api": 1, "vectors": maker.draw.choice(("f32", "json"))}}
    elif maker.draw.random() < 0.5:
        wire["scope"] = {"flow_id": "f"}
    roll = maker.draw.random()
    payload = wire_bytes(maker.wild(wire) if 0.4 < roll < 0.7 else wire)
    payload = maker.broken(payload) if roll >= 0.7 else payload
    asked, fault = _attempt(lambda: decode_frame(payload), MalformedFrame)
    if isinstance(fault, MalformedFrame):
        assert roll > 0.4, f"{payload!r} was refused: {fault}"
        answer = json.loads(encode_error(fault.id, fault.error, module_generation=1, max_frame=4096)[HEADER_BYTES:])
        assert answer["error"]["code"] == "invalid_request"
        tally["client refused"] += 1
        return
    if isinstance(asked, ClientHello):
        tally["client hello"] += 1
    else:
        assert isinstance(asked, Request)
        answer = encode_error(asked.id, MalformedFrame(None, "x").error, module_generation=1, max_frame=4096)
        assert "error" in json.loads(answer[HEADER_BYTES:])
        tally["client request"] += 1


def fuzz_client(maker: FrameMaker, tally: Tally) -> None:
    """A few answers to a client, some of them no answers; it takes them, or closes with the one exception for it."""
    exchange = Exchange()
    number, _ = exchange.request("m", {})
    stream = b""
    for _ in range(maker.draw.randint(1, 3)):
        wire: dict[str, Any] = dict(maker.draw.choice(_ANSWERS))
        if "id" in wire and maker.draw.random() < 0.9:
            wire["id"] = number
        wire = maker.wild(wire) if maker.draw.random() < 0.3 else wire
        if maker.draw.random() < 0.2 and isinstance(inner := next(reversed(wire.values())), dict):
            wire[next(reversed(wire))] = maker.wild(inner)
        payload = wire_bytes(wire)
        payload = maker.broken(payload) if maker.draw.random() < 0.1 else payload
        stream += len(payload).to_bytes(HEADER_BYTES, "little") + payload
        if isinstance(result := wire.get("result"), dict) and "raw" in result:
            stream += (8).to_bytes(HEADER_BYTES, "little") + bytes(8)

    def receive() -> list[int]:
        return [done for chunk in maker.chunks(stream) for done in exchange.feed(chunk)]

    # What a host says its client repeats in full.
    completed, fault = _attempt(receive, ReplyMismatch, most=math.inf)
    if completed is None:
        tally["answer refused"] += 1
        return
    assert completed in ([], [number])
    answer, fault = _attempt(lambda: exchange.take(number), SynapseError, ReplyMismatch, most=math.inf)
    if fault is not None:
        tally["answer error"] += 1
    else:
        tally["answer taken" if isinstance(answer, Received) else "answer to come"] += 1


def fuzz_framing(maker: FrameMaker, tally: Tally) -> None:
    """A few frames in one stream of bytes, some headers lying, in pieces; beside a reading of the whole stream."""
    stream = b""
    for _ in range(maker.draw.randint(1, 12)):
        payload = maker.draw.randbytes(maker.draw.choice((0, 1, 3, 50, 400, _LIMIT, _LIMIT + 1)))
        header = len(payload).to_bytes(HEADER_BYTES, "little")
        stream += (maker.draw.randbytes(HEADER_BYTES) if maker.draw.random() < 0.05 else header) + payload
    decoder, found, ended = FrameDecoder(_LIMIT), [], False
    try:
        for chunk in maker.chunks(stream):
            decoder.feed(chunk)
            while (frame := decoder.next_frame()) is not None:
                found.append(frame)
    except FrameTooLarge:
        ended = True
    expected, too_large = _frames_of(stream)
    assert found == expected
    assert ended == too_large
    assert ended or decoder.pending_bytes == len(stream) - sum(map(len, found)) - _headers(decoder, len(found))
    tally["frames whole"] += len(found)
    tally["frames too large"] += ended


def _attempt(
    call: Callable[[], Value], *ways_out: type[Exception], most: float = _MOST_SAID
) -> tuple[Value | None, Exception | None]:
    """What ``call`` returns, or the fault it ends with; a text about a fault may not repeat all it complains of."""
    try:
        return call(), None
    except ways_out as fault:
        if len(str(fault)) > most:
            raise AssertionError(f"a message of {len(str(fault))} characters: {str(fault)[:200]}") from fault
        return None, fault


def _headers(decoder: FrameDecoder, frames: int) -> int:
    """Bytes of headers taken off the stream: those of whole frames, and of the one that is under way."""
    under_way = decoder.wanted_bytes + decoder.pending_bytes != HEADER_BYTES
    return HEADER_BYTES * (frames + under_way)


def _frames_of(stream: bytes) -> tuple[list[bytes], bool]:
    frames: list[bytes] = []
    place = 0
    while place + HEADER_BYTES <= len(stream):
        length = int.from_bytes(stream[place : place + HEADER_BYTES], "little")
        if length > _LIMIT:
            return frames, True
        place += HEADER_BYTES
        if place + length > len(stream):
            break
        frames.append(stream[place : place + length])
        place += length
    return frames, False


def _asked(maker: FrameMaker) -> Message:
    return _SAMPLED[maker.pick(_ANSWERED)]


def _reply(maker: FrameMaker, kind: type[Message]) -> Message:
    """A lawful message of ``kind`` whose counts may or may not be those that were asked for."""
    wire = maker.lawful(kind)
    for name, values in _COUNTS.items():
        if name in wire:
            wire[name] = maker.draw.choice(values)
    if maker.draw.random() < 0.1:
        wire["req_id"] = "r-2"
    return codec.decode_response(wire_bytes(wire))


_DECODERS: dict[type[Message], tuple[Callable[[bytes], Message], str]] = {
    **{kind: (decode, "handshake") for kind, decode in _HANDSHAKE.items()},
    **dict.fromkeys(REQUESTS.values(), (codec.decode_request, "request")),
    **dict.fromkeys(RESPONSES.values(), (codec.decode_response, "response")),
}
_KINDS: Sequence[type[Message]] = list(_DECODERS)
_RESPONSES: Sequence[type[Message]] = list(RESPONSES.values())
_ANSWERED: Sequence[type[Message]] = list(REPLIES)
#: Bytes of the raw frame that suits a reply to a sampled request; the others have none.
_SAMPLED_RAW: Mapping[type[Message], int] = {
    VectorsHeader: 12,
    Scores: 4,
    SelfChecked: SELF_CHECKED_BYTES,
}
_SAMPLED = {kind: sample_of(kind) for kind in _ANSWERED}
#: Counts of a reply, the right one among them, and what a sampled request needs of the others.
_COUNTS: Mapping[str, Sequence[Any]] = {
    "n": (1, 1, 1, 1, 2),
    "n_prompt": (2, 2, 2, 2, 1),
    "n_gen": (2, 2, 2, 2, 5000),
    "generated_token_ids": ([1, 2], [1, 2], [1, 2], []),
    "dims": (3, 3, 3, 3, 4),
    "text": ("a", "a", "a", "a", "\ud800"),
    "msg": ("a", "x" * 5000),
    "code": ("oom", "x" * 5000),
}

#: Lawful frames to a client.
_ANSWERS: Sequence[dict[str, Any]] = (
    {"hello": {"api": 1, "version": "1", "module_generation": 1, "max_frame": 8192, "vectors": "f32"}},
    {"id": 1, "result": {"value": 1}},
    {"id": 1, "result": {"raw": {"rows": 1, "dims": 2}}},
    {"id": 1, "result": {"error": QueueFull("later").to_wire()}},
    {"id": 1, "error": QueueFull("later").to_wire()},
    {"id": None, "error": QueueFull("later").to_wire()},
)
TARGETS: Sequence[Target] = (fuzz_codec, fuzz_handshake, fuzz_reply, fuzz_session, fuzz_framing, fuzz_client)
#: Of eleven rounds, how many go to each target; a round of framing is several frames.
_SHARES = (5, 1, 2, 1, 1, 1)
#: What a run must have reached to count as one: every message of every role, and every way out.
HANDLERS = frozenset(
    {
        *(f"request {name}" for name in REQUESTS),
        *(f"response {name}" for name in RESPONSES),
        *(f"reply {REPLIES[kind].TYPE} of {kind.TYPE}" for kind in REPLIES),
        *("handshake Hello", "handshake HelloAck", "handshake refused", "request refused", "response refused"),
        *("hello accepted", "hello malformed_hello", "hello version_mismatch", "hello nonce_mismatch"),
        *("hello manifest_mismatch", "hello kernel_revision_mismatch", "reply ERR", "reply refused"),
        *("answer taken", "answer to come", "answer error", "answer refused"),
        *("client hello", "client request", "client refused", "frames whole", "frames too large"),
    }
)


def fuzz_decoders(frames: int, seed: int) -> Tally:
    """At least ``frames`` frames, drawn from ``seed``; what they reached. A failure names the seed."""
    maker, tally = FrameMaker(random.Random(seed)), Tally()  # noqa: S311
    round_of = [target for target, share in zip(TARGETS, _SHARES, strict=True) for _ in range(share)]
    try:
        while tally.total() < frames:
            for target in round_of:
                target(maker, tally)
    except Exception as fault:
        raise AssertionError(f"seed {seed}, after {tally.total()} frames: {type(fault).__name__}: {fault}") from fault
    return tally
