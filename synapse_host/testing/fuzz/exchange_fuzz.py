"""The host's end of a worker connection against a worker that may say anything: whole exchanges over real sockets."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence

import anyio

from synapse_host.framing import FrameTooLarge, frame_header
from synapse_host.supervision.conversation import Conversation
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.reply_check import REPLIES
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.socket_stream import SocketStream
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.testing.fuzz.message_strategies import SELF_CHECKED_BYTES, sample_of
from synapse_host.testing.fuzz.mutated_frames import FrameMaker, wire_bytes
from synapse_host.time_limits import TimeLimits
from synapse_host.worker_protocol.channel import ChannelClosed, WorkerChannel
from synapse_host.worker_protocol.codec import encode
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.message import Message
from synapse_host.worker_protocol.messages import (
    RESPONSES,
    Generate,
    ProgressReport,
    SelfCheck,
    SelfChecked,
    Text,
    VectorsHeader,
)
from synapse_host.worker_protocol.progress import CONTROL_OPERATIONS

Tally = Counter[str]
_MAX_FRAME = 1024 * 1024
_DEADLINE_S = 30.0
_WINDOWS = SilenceWindows()
_DIMS = 3

_SAMPLES: Mapping[type[Message], Message] = {kind: sample_of(kind) for kind in REPLIES}
#: The reply that suits each sampled request, and its raw frame.
_SUITING: Mapping[type[Message], tuple[Message, bytes | None]] = (
    {kind: (sample_of(answer), bytes(4) if answer.RAW else None) for kind, answer in REPLIES.items()}
    | {
        kind: (VectorsHeader("r-1", _DIMS, 1), bytes(4 * _DIMS))
        for kind, answer in REPLIES.items()
        if answer is VectorsHeader
    }
    | {SelfCheck: (sample_of(SelfChecked), bytes(SELF_CHECKED_BYTES))}
)
_ASKED: Sequence[type[Message]] = list(REPLIES)
_RESPONSES: Sequence[type[Message]] = list(RESPONSES.values())
_GENERATED = Text("r-1", "ä", 2, 2, "stop", [1, 2])

#: What ended a conversation, in the words of the tally.
_FAULTS: Mapping[type[BaseException | None], str] = {
    ProtocolFault: "faulty",
    FrameTooLarge: "too large",
    ChannelClosed: "closed",
}

#: What a run must have reached to count as one.
HANDLERS = frozenset({f"{kind.TYPE} answered" for kind in REPLIES} | {"refused", "faulty", "too large", "closed"})


async def fuzz_exchanges(frames: int, seed: int) -> Tally:
    """Send at least ``frames`` frames to the host in exchanges drawn from ``seed``; what came of them.

    Every exchange that ends its connection is followed by a lawful one on a new connection, which must succeed. Raises
    ``AssertionError`` naming the seed.
    """
    maker, tally = FrameMaker(random.Random(seed)), Tally()  # noqa: S311
    while tally["frames"] < frames:
        try:
            await _one_worker(maker, tally)
        except Exception as fault:
            raise AssertionError(f"seed {seed}, after {tally['frames']} frames: {fault!r}") from fault
    return tally


async def _one_worker(maker: FrameMaker, tally: Tally) -> None:
    """Some lawful exchanges over one connection, then one that is not, after which the worker hangs up."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = WorkerChannel(SocketStream(ours), _MAX_FRAME)
        try:
            for _ in range(maker.draw.randint(1, 3)):
                request = _SAMPLES[maker.pick(_ASKED)]
                outcome = await _exchange(tally, channel, theirs, request, _lawful_frames(maker, request))
                assert outcome == f"{request.TYPE} answered", outcome
                theirs.recv(_MAX_FRAME)
            request = _SAMPLES[maker.pick(_ASKED)]
            await _exchange(tally, channel, theirs, request, _spoiled(maker, _lawful_frames(maker, request)), last=True)
        finally:
            channel.close()


async def _exchange(
    tally: Tally,
    channel: WorkerChannel,
    worker: socket.socket,
    request: Message,
    frames: list[bytes],
    last: bool = False,
) -> str:
    worker.sendall(b"".join(frames))
    if last:
        # A host that wants more than it was sent reads the end.
        worker.shutdown(socket.SHUT_WR)
    exchange = Exchange(request, bytes(8) if request.RAW else None, None, _DIMS)
    outcome = await _outcome(exchange, channel)
    tally["frames"] += len(frames)
    tally[outcome] += 1
    return outcome


async def _outcome(exchange: Exchange, channel: WorkerChannel) -> str:
    limits = TimeLimits()

    def ended(fault: WorkerFault) -> None:
        if not exchange.done.is_set():
            exchange.fail(fault)

    conversation = Conversation(channel, _WINDOWS, "fuzz", limits, answered=lambda *_: None, ended=ended)
    try:
        conversation.put(exchange)
        with anyio.fail_after(_DEADLINE_S):
            await exchange.done.wait()
        reply, _ = exchange.outcome()
    except WorkerRefusal:
        return "refused"
    except WorkerFault as fault:
        return _FAULTS[type(fault.__cause__)]
    finally:
        limits.close()
    assert type(reply) is REPLIES[type(exchange.message)]
    return f"{exchange.message.TYPE} answered"


def _lawful_frames(maker: FrameMaker, request: Message) -> list[bytes]:
    phase = "control" if request.OPERATION in CONTROL_OPERATIONS else "inference"
    frames = [
        _frame(encode(ProgressReport("r-1", completed, phase)))  # type: ignore[arg-type]
        for completed in range(1, maker.draw.choice((1, 1, 2, 4)))
    ]
    reply, raw = (_GENERATED, None) if isinstance(request, Generate) else _SUITING[type(request)]
    frames.append(_frame(encode(reply)))
    return frames if raw is None else [*frames, _frame(raw)]


def _spoiled(maker: FrameMaker, frames: list[bytes]) -> list[bytes]:
    draw, place = maker.draw, maker.draw.randrange(len(frames))
    kind = maker.pick(_RESPONSES)
    match draw.randrange(8):
        case 0:
            new = wire_bytes(maker.with_one_fault(kind))
        case 1:
            new = wire_bytes(maker.wild(maker.lawful(kind)))
        case 2:
            new = maker.broken(frames[place][4:])
        case 3 | 4:
            new = wire_bytes({"type": "ERR", "req_id": "r-1", "code": "oom", "msg": "no room"})
            return [*frames[:place], _frame(new)]
        case 5:
            return [*frames[:place], draw.randbytes(4), *frames[place:]]
        case 6:
            data = b"".join(frames)
            return [data[: draw.randrange(len(data))]]
        case _:
            draw.shuffle(frames)
            return frames
    return [*frames[:place], _frame(new), *frames[place + draw.randrange(2) :]]


def _frame(payload: bytes) -> bytes:
    return frame_header(len(payload), len(payload)) + payload
