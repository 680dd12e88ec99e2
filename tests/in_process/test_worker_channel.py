from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Sequence

import anyio
import pytest

from synapse_host.framing import FrameTooLarge
from synapse_host.supervision.exchange import Exchange, carry_out
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.worker_protocol.channel import Buffer, ChannelClosed, WorkerChannel
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import EmbedBatchRequest, VectorsHeader

pytestmark = pytest.mark.anyio


class MemoryStream:
    """Hands out ``chunks`` one by one, each after ``pause_s``; None in their place waits for ever."""

    def __init__(self, *chunks: bytes | None, pause_s: float = 0.0) -> None:
        self.chunks = list(chunks)
        self.pause_s = pause_s
        self.sent: list[bytes] = []

    def send_now(self, parts: Sequence[Buffer]) -> list[memoryview]:
        self.sent += [bytes(part) for part in parts]
        return []

    async def send(self, parts: Sequence[Buffer]) -> None:
        self.send_now(parts)

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.sleep(self.pause_s)
        chunk = self.chunks.pop(0) if self.chunks else b""
        if chunk is None:
            await anyio.sleep_forever()
        assert chunk is not None
        assert len(chunk) <= max_bytes
        return chunk

    async def receive_into(self, buffer: memoryview) -> int:
        chunk = await self.receive(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self.chunks.clear()


class BrokenStream(MemoryStream):
    """A connection the peer has reset."""

    def send_now(self, parts: Sequence[Buffer]) -> list[memoryview]:
        raise BrokenPipeError(32, "Broken pipe")

    async def receive(self, max_bytes: int) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def control(**fields: object) -> bytes:
    return frame(json.dumps({"req_id": "e", **fields}).encode())


HEADER = control(type="VECTORS", dims=2, n=1)
VECTORS = frame(struct.pack("<2f", 1.0, 2.0))


def request() -> Exchange:
    message = EmbedBatchRequest("e", "m", "mean", True, [{"id": "a", "n_tokens": 1}])
    return Exchange(message, struct.pack("<i", 7))


async def test_a_request_and_its_raw_frame_leave_together() -> None:
    stream = MemoryStream(HEADER, VECTORS)
    exchange = request()
    await carry_out(exchange, WorkerChannel(stream, 4096), SilenceWindows(), "stub")
    assert b"".join(stream.sent) == frame(exchange.payload) + frame(struct.pack("<i", 7))


async def test_a_reply_in_single_bytes_is_one_reply() -> None:
    stream = MemoryStream(*(bytes([byte]) for byte in HEADER + VECTORS))
    reply, raw = await carry_out(request(), WorkerChannel(stream, 4096), SilenceWindows(), "stub")
    assert (reply, raw) == (VectorsHeader("e", 2, 1), VECTORS[4:])


async def test_nothing_is_sent_of_a_frame_that_is_too_large() -> None:
    stream = MemoryStream()
    channel = WorkerChannel(stream, 16)
    for payload, raw in ((b"x" * 17, None), (b"x", b"y" * 17)):
        with pytest.raises(FrameTooLarge):
            await channel.send(payload, raw)
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
        await channel.send(b"{}")
    with pytest.raises(ChannelClosed, match="reset by peer"):
        await channel.receive()


async def test_bytes_left_over_from_before_are_a_fault() -> None:
    channel = WorkerChannel(MemoryStream(HEADER + VECTORS + b"rest"), 4096)
    await carry_out(request(), channel, SilenceWindows(), "stub")
    with pytest.raises(ProtocolFault, match="4 bytes arrived that no request asked for"):
        await carry_out(request(), channel, SilenceWindows(), "stub")


async def test_completed_work_renews_the_window() -> None:
    """Five reports, each well within the window, together well past it."""
    reports = [control(type="PROGRESS", completed=done, phase="inference") for done in range(1, 6)]
    stream = MemoryStream(*reports, HEADER, VECTORS, pause_s=0.2)
    windows = SilenceWindows(inference_s=0.9)
    reply, _ = await carry_out(request(), WorkerChannel(stream, 4096), windows, "stub")
    assert isinstance(reply, VectorsHeader)


async def test_silence_after_progress_ends_the_exchange() -> None:
    stream = MemoryStream(control(type="PROGRESS", completed=1, phase="inference"), None)
    with pytest.raises(WorkerFault, match=r"no completed work for 0\.05 s") as silent:
        await carry_out(request(), WorkerChannel(stream, 4096), SilenceWindows(inference_s=0.05), "stub")
    assert silent.value.reason == "silence"


async def test_the_phase_cuda_names_chooses_its_window() -> None:
    stream = MemoryStream(control(type="PROGRESS", completed=1, phase="inference"), None)
    windows = SilenceWindows(long_s=600.0, inference_s=0.05)
    with pytest.raises(WorkerFault, match=r"0\.05 s"):
        await carry_out(request(), WorkerChannel(stream, 4096), windows, "owned-cuda")


async def test_bytes_alone_do_not_renew_the_window() -> None:
    """A frame that never ends is no completed work, however steadily it arrives."""
    stream = MemoryStream(*([b"\x10"] + [b"\x00"] * 3 + [b"x"] * 1000), pause_s=0.02)
    with pytest.raises((WorkerFault, ProtocolFault)) as ended:
        await carry_out(request(), WorkerChannel(stream, 4096), SilenceWindows(inference_s=0.1), "stub")
    assert isinstance(ended.value, WorkerFault)


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
    assert await channel.receive(len(LARGE)) == LARGE
    assert await channel.receive(len(LARGE)) == b"next"
    assert channel.pending_bytes == 0


async def test_a_large_frame_that_is_cut_short_is_said_so() -> None:
    data = frame(LARGE)[:100_000]
    channel = WorkerChannel(MemoryStream(data[:65536], data[65536:]), 2 * len(LARGE))
    with pytest.raises(ChannelClosed, match="after 99996 bytes of an unfinished frame"):
        await channel.receive(len(LARGE))


async def test_memory_is_not_taken_by_what_a_header_says_alone() -> None:
    stream = MemoryStream(struct.pack("<I", 2**26) + b"x", b"y", None)
    channel = WorkerChannel(stream, 2**26)
    tracemalloc.start()
    try:
        with anyio.move_on_after(0.05):
            await channel.receive(len(LARGE))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert channel.pending_bytes == 2
