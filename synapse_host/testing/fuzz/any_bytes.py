"""One entry for a fuzzer that knows nothing of frames: the first byte chooses what reads the others.

Whatever they are, what reads them ends in a lawful value or in its own exception; anything else is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from synapse_host.client.exchange import Exchange as ClientExchange
from synapse_host.client.faults import ReplyMismatch
from synapse_host.errors import QueueFull, SynapseError
from synapse_host.framing import HEADER_BYTES, FrameDecoder, FrameTooLarge
from synapse_host.server.envelope import Request, decode_frame, encode_error
from synapse_host.server.malformed import MalformedFrame
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.reply_check import REPLIES
from synapse_host.testing.fuzz.message_strategies import sample_of
from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.faults import HandshakeRefused, ProtocolFault
from synapse_host.worker_protocol.handshake import check_hello
from synapse_host.worker_protocol.messages import REQUESTS, RESPONSES, Hello, HelloAck, Message

_LIMIT = 4096
_NONCE = "0123456789abcdef"
_ASKED = [sample_of(kind) for kind in REPLIES]


def take(data: bytes) -> str | None:
    """Let ``data`` be read; the name of what took it for lawful, None where it was refused.

    Raises ``AssertionError`` where a reader took what it should not have.
    """
    if not data:
        return None
    reader = READERS[data[0] % len(READERS)]
    return reader.__name__ if reader(data[1:]) else None


def seeds() -> list[bytes]:
    """Lawful inputs for each reader, to begin from."""
    kinds: list[type[Message]] = [*REQUESTS.values(), *RESPONSES.values(), Hello, HelloAck]
    frames = [codec.encode(sample_of(kind)) for kind in kinds]
    frames += [b'{"id":1,"method":"embed.query","params":{"text":"a"}}', b'{"hello":{"api":1,"vectors":"f32"}}']
    frames.append(codec.encode(replace(sample_of(Hello), v=3, nonce=_NONCE)))  # type: ignore[call-arg]
    replies = [
        bytes([place]) + _framed(codec.encode(sample_of(answer)))
        for place, answer in enumerate(REPLIES.values())
        if not answer.RAW
    ]
    answers = [_framed(b'{"id":1,"result":{"value":1}}')]
    return [bytes([place]) + frame for place in range(len(READERS)) for frame in [*frames, *replies, *answers]]


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def _request(data: bytes) -> bool:
    return _decoded(codec.decode_request, data)


def _response(data: bytes) -> bool:
    return _decoded(codec.decode_response, data)


def _hello_ack(data: bytes) -> bool:
    return _decoded(codec.decode_hello_ack, data)


def _decoded(decode: Callable[[bytes], Message], data: bytes) -> bool:
    try:
        message = decode(data)
    except ProtocolFault:
        return False
    codec.check_outgoing(message)
    assert decode(codec.encode(message)) == message
    return True


def _hello(data: bytes) -> bool:
    try:
        hello, ack = check_hello(data, nonce=_NONCE, host_max_frame=8192, expected_manifest=None, expected_kernel=None)
    except HandshakeRefused:
        return False
    assert (hello.v, hello.nonce, ack.accept) == (3, _NONCE, True)
    return True


def _reply(data: bytes) -> bool:
    """The first byte chooses the request; the frames are a reply to it."""
    if not data:
        return False
    message = _ASKED[data[0] % len(_ASKED)]
    exchange = Exchange(message, bytes(8) if message.RAW else None, None, 3)
    decoder = FrameDecoder(_LIMIT)
    decoder.feed(data[1:])
    try:
        while (frame := decoder.next_frame()) is not None:
            if isinstance(taken := exchange.take(frame), tuple):
                assert type(taken[0]) is REPLIES[type(message)]
                return True
    except (FrameTooLarge, ProtocolFault, WorkerRefusal):
        pass
    return False


def _client_frame(data: bytes) -> bool:
    try:
        asked = decode_frame(data)
    except MalformedFrame as fault:
        encode_error(fault.id, fault.error, module_generation=1, max_frame=_LIMIT)
        return False
    request_id = asked.id if isinstance(asked, Request) else None
    encode_error(request_id, QueueFull("later"), module_generation=1, max_frame=_LIMIT)
    return True


def _answer(data: bytes) -> bool:
    exchange = ClientExchange()
    number, _ = exchange.request("m", {})
    try:
        return bool(exchange.feed(data)) and exchange.take(number) is not None
    except (ReplyMismatch, SynapseError):
        return False


#: What the first byte chooses among.
READERS: Sequence[Callable[[bytes], bool]] = (_request, _response, _hello_ack, _hello, _reply, _client_frame, _answer)
