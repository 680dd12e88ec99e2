from __future__ import annotations

import asyncio
import json
import struct
import tracemalloc
from collections.abc import Sequence

import anyio
import pytest

from synapse_host.framing import Buffer, FrameTooLarge
from synapse_host.supervision.conversation import Conversation
from synapse_host.supervision.exchange import Exchange, Reply
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.testing.workers.running_worker import PATIENCE_S
from synapse_host.time_limits import TimeLimits
from synapse_host.worker_protocol.channel import ChannelClosed, Receiver, WorkerChannel
from synapse_host.worker_protocol.messages import EmbedBatchRequest, VectorsHeader

pytestmark = pytest.mark.anyio


class MemoryStream:
    """Hands out ``chunks`` one by one, each ``pause_s`` after the one before, then the end; None waits for ever."""

    sending = False

    def __init__(self, *chunks: bytes | None, pause_s: float = 0.0) -> None:
        self.chunks: list[bytes | None] = [*chunks, b""]
        self.pause_s = pause_s
        self.sent: list[bytes] = []
        self.receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._later()

    def send(self, parts: Sequence[Buffer]) -> None:
        self.sent += [bytes(part) for part in parts]

    def stop(self) -> None:
        self.receiver = None

    def close(self) -> None:
        self.stop()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(self.pause_s, self._hand_out)

    def _hand_out(self) -> None:
        chunk = self.chunks.pop(0) if self.receiver is not None else None
        if self.receiver is None or chunk is None:
            return
        room = self.receiver.room()
        if not chunk:
            self.receiver.ended(None)
            return
        if isinstance(room, int):
            assert len(chunk) <= room
            self.receiver.arrived(chunk)
        else:
            room[: len(chunk)] = chunk
            self.receiver.filled(len(chunk))
        self._later()


class BrokenStream(MemoryStream):
    """A connection the peer has reset."""

    def send(self, parts: Sequence[Buffer]) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def _hand_out(self) -> None:
        assert self.receiver is not None
        self.receiver.ended(ConnectionResetError(104, "Connection reset by peer"))


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def control(**fields: object) -> bytes:
    return frame(json.dumps({"req_id": "e", **fields}).encode())


HEADER = control(type="VECTORS", dims=2, n=1)
VECTORS = frame(struct.pack("<2f", 1.0, 2.0))


def request() -> Exchange:
    message = EmbedBatchRequest("e", "m", "mean", True, [{"id": "a", "n_tokens": 1}])
    return Exchange(message, struct.pack("<i", 7))


class Talk:
    """A conversation over ``stream``; what a worker's task would be told of its end is raised."""

    def __init__(self, stream: MemoryStream, windows: SilenceWindows | None = None, engine: str = "stub") -> None:
        self.fault: WorkerFault | None = None
        self.limits = TimeLimits()
        self.asked: list[Exchange] = []
        self.conversation = Conversation(
            WorkerChannel(stream, 4096),
            windows or SilenceWindows(),
            engine,
            self.limits,
            answered=lambda *_: None,
            ended=self.end,
        )

    def end(self, fault: WorkerFault) -> None:
        self.fault = fault
        for exchange in self.asked:
            if not exchange.done.is_set():
                exchange.fail(fault)

    async def ask(self, exchange: Exchange) -> Reply:
        self.asked.append(exchange)
        self.conversation.put(exchange)
        try:
            with anyio.fail_after(PATIENCE_S):
                await exchange.done.wait()
        finally:
            self.asked.remove(exchange)
            self.limits.close()
        return exchange.outcome()


async def next_frame(channel: WorkerChannel, awaited: int) -> bytes | bytearray:
    heard = anyio.Event()
    channel.attach(lambda: heard.set())
    while (frame := channel.next_frame(awaited)) is None:
        await heard.wait()
        heard = anyio.Event()
    return frame


async def test_a_request_and_its_raw_frame_leave_together() -> None:
    stream = MemoryStream(HEADER, VECTORS)
    exchange = request()
    await Talk(stream).ask(exchange)
    assert b"".join(stream.sent) == frame(exchange.payload) + frame(struct.pack("<i", 7))


async def test_a_reply_in_single_bytes_is_one_reply() -> None:
    stream = MemoryStream(*(bytes([byte]) for byte in HEADER + VECTORS))
    reply, raw = await Talk(stream).ask(request())
    assert (reply, raw) == (VectorsHeader("e", 2, 1), VECTORS[4:])


async def test_nothing_is_sent_of_a_frame_that_is_too_large() -> None:
    stream = MemoryStream()
    channel = WorkerChannel(stream, 16)
    for payload, raw in ((b"x" * 17, None), (b"x", b"y" * 17)):
        with pytest.raises(FrameTooLarge):
            channel.send(payload, raw)
    assert stream.sent == []


async def test_the_negotiated_size_holds_for_what_arrives() -> None:
    channel = WorkerChannel(MemoryStream(frame(b"x" * 16), frame(b"x" * 17)), 4096)
    channel.lower_max_frame(16)
    assert await channel.receive() == b"x" * 16
    with pytest.raises(FrameTooLarge):
        await channel.receive()


@pytest.mark.parametrize(("cut", "said"), [(0, "closed the connection$"), (7, "after 3 bytes of an unfinished frame")])
async def test_the_end_says_whether_it_cut_a_frame(cut: int, said: str) -> None:
    with pytest.raises(ChannelClosed, match=said):
        await WorkerChannel(MemoryStream(frame(b"payload")[:cut]), 4096).receive()


async def test_a_broken_connection_is_an_end_either_way() -> None:
    channel = WorkerChannel(BrokenStream(), 4096)
    with pytest.raises(ChannelClosed, match="Broken pipe"):
        channel.send(b"{}")
    with pytest.raises(ChannelClosed, match="reset by peer"):
        await channel.receive()


async def test_bytes_left_over_from_before_are_the_end() -> None:
    talk = Talk(MemoryStream(HEADER + VECTORS + b"\x04\x00\x00", None))
    await talk.ask(request())
    assert (talk.fault and talk.fault.reason, str(talk.fault)) == (
        "protocol_fault",
        "3 bytes arrived that no request asked for",
    )


async def test_a_frame_nobody_asked_for_is_the_end_also_between_requests() -> None:
    talk = Talk(MemoryStream(None))
    talk.conversation._channel.arrived(frame(b"{}"))
    assert (talk.fault and talk.fault.reason, str(talk.fault)) == (
        "protocol_fault",
        "a frame arrived that no request asked for",
    )


async def test_a_worker_that_left_before_the_first_request_is_known_to_have() -> None:
    channel = WorkerChannel(MemoryStream(None), 4096)
    channel.ended(None)
    ends: list[WorkerFault] = []
    Conversation(channel, SilenceWindows(), "stub", TimeLimits(), answered=lambda *_: None, ended=ends.append)
    assert [str(fault) for fault in ends] == ["the worker closed the connection while idle"]


async def test_a_reply_before_the_request_was_read_is_no_reply() -> None:
    """What is still to be written would stand before the next request."""
    stream = MemoryStream(HEADER, VECTORS)
    stream.sending = True
    with pytest.raises(WorkerFault, match="before the request was read"):
        await Talk(stream).ask(request())


async def test_requests_wait_their_turn_and_one_taken_back_is_never_sent() -> None:
    talk = Talk(stream := MemoryStream(None))
    first, second, third = request(), request(), request()
    for exchange in (first, second, third):
        talk.conversation.put(exchange)
    assert talk.conversation.withdraw(second)
    assert not talk.conversation.withdraw(first)
    assert len(stream.sent) == 2
    for chunk in (HEADER, VECTORS):
        talk.conversation._channel.arrived(chunk)
    assert (first.done.is_set(), second.done.is_set(), third.done.is_set()) == (True, False, False)
    assert len(stream.sent) == 4
    talk.limits.close()


async def test_completed_work_renews_the_window() -> None:
    """Five reports, each well within the window, together well past it."""
    reports = [control(type="PROGRESS", completed=done, phase="inference") for done in range(1, 6)]
    stream = MemoryStream(*reports, HEADER, VECTORS, pause_s=0.2)
    windows = SilenceWindows(inference_s=0.9)
    reply, _ = await Talk(stream, windows).ask(request())
    assert isinstance(reply, VectorsHeader)


async def test_silence_after_progress_ends_the_exchange() -> None:
    stream = MemoryStream(control(type="PROGRESS", completed=1, phase="inference"), None)
    with pytest.raises(WorkerFault, match=r"no completed work for 0\.05 s") as silent:
        await Talk(stream, SilenceWindows(inference_s=0.05)).ask(request())
    assert silent.value.reason == "silence"


async def test_the_phase_cuda_names_chooses_its_window() -> None:
    stream = MemoryStream(control(type="PROGRESS", completed=1, phase="inference"), None)
    windows = SilenceWindows(long_s=600.0, inference_s=0.05)
    with pytest.raises(WorkerFault, match=r"0\.05 s"):
        await Talk(stream, windows, "owned-cuda").ask(request())


async def test_bytes_alone_do_not_renew_the_window() -> None:
    """A frame that never ends is no completed work, however steadily it arrives."""
    stream = MemoryStream(*([b"\x10"] + [b"\x00"] * 3 + [b"x"] * 1000), pause_s=0.02)
    with pytest.raises(WorkerFault) as ended:
        await Talk(stream, SilenceWindows(inference_s=0.1)).ask(request())
    assert ended.value.reason == "silence"


async def test_guards_are_let_go_once_when_the_reply_is_drained() -> None:
    calls: list[str] = []
    exchange = Exchange(request().message, b"", lambda: calls.append("drained"))
    assert calls == []
    exchange.finish((VectorsHeader("e", 2, 1), b""))
    assert calls == ["drained"]
    assert exchange.done.is_set()


LARGE = bytes(range(256)) * 8192


@pytest.mark.parametrize("cut", [1, 4, 5, 4096, len(LARGE) + 3])
async def test_an_awaited_large_frame_comes_whole_however_it_is_cut(cut: int) -> None:
    data = frame(LARGE)
    # No piece is longer than a reader asks for at least.
    pieces = [data[:cut], *(data[place : place + 65536] for place in range(cut, len(data), 65536))]
    pieces = [piece[start : start + 65536] for piece in pieces for start in range(0, len(piece), 65536)]
    channel = WorkerChannel(MemoryStream(*pieces, frame(b"next")), 2 * len(LARGE))
    assert await next_frame(channel, len(LARGE)) == LARGE
    assert await next_frame(channel, len(LARGE)) == b"next"
    assert channel.pending_bytes == 0


async def test_a_large_frame_that_is_cut_short_is_said_so() -> None:
    data = frame(LARGE)[:100_000]
    channel = WorkerChannel(MemoryStream(data[:65536], data[65536:]), 2 * len(LARGE))
    with pytest.raises(ChannelClosed, match="after 99996 bytes of an unfinished frame"):
        await next_frame(channel, len(LARGE))


async def test_memory_is_not_taken_by_what_a_header_says_alone() -> None:
    stream = MemoryStream(struct.pack("<I", 2**26) + b"x", b"y", None)
    channel = WorkerChannel(stream, 2**26)
    tracemalloc.start()
    try:
        with anyio.move_on_after(0.05):
            await next_frame(channel, len(LARGE))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert channel.pending_bytes == 2
