from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from synapse_host.direct_stream import DirectStream, WriteStalled
from synapse_host.testing.raw_peer import DEADLINE_S

pytestmark = pytest.mark.anyio

LARGE = 3_000_000


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[tuple[SocketStream, SocketStream]]:
    async with (
        await anyio.create_unix_listener(tmp_path / "s") as listener,
        await anyio.connect_unix(tmp_path / "s") as near,
        await listener.accept() as far,
    ):
        yield near, far


async def test_large_writes_of_many_tasks_never_mix(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    received = bytearray()
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for letter in b"abcd":
                tasks.start_soon(near.write, bytes([letter]) * 1000, bytes([letter]) * (LARGE - 1000))
            while len(received) < 4 * LARGE:
                received += await far.receive(100_000)
    runs = {bytes(received[start : start + LARGE]) for start in range(0, len(received), LARGE)}
    assert runs == {bytes([letter]) * LARGE for letter in b"abcd"}


async def test_a_write_that_goes_on_is_not_cut_off(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.write, bytes(LARGE))
            total = len(await far.receive(100_000))
            assert not near.torn
            while total < LARGE:
                total += len(await far.receive(100_000))


async def test_peer_that_stops_reading_stalls_the_write(ends: tuple[SocketStream, SocketStream]) -> None:
    near = DirectStream(ends[0], stall_s=0.05)
    with anyio.fail_after(DEADLINE_S), pytest.raises(WriteStalled, match=r"0\.05 s"):
        await near.write(bytes(LARGE))


async def test_slow_reader_that_goes_on_is_no_stall(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = DirectStream(ends[0], stall_s=DEADLINE_S), DirectStream(ends[1])
    total = 0
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.write, bytes(LARGE))
            while total < LARGE:
                total += len(await far.receive(5000))


async def test_write_cut_off_by_a_cancellation_tears_the_stream(ends: tuple[SocketStream, SocketStream]) -> None:
    near = DirectStream(ends[0])
    with anyio.move_on_after(0.05) as scope:
        await near.write(bytes(LARGE))
    assert scope.cancelled_caught
    assert near.torn
    with pytest.raises(anyio.BrokenResourceError, match="cut off"):
        await near.write(b"next")


async def test_cancelled_read_loses_no_byte(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    with anyio.fail_after(DEADLINE_S):
        for number in range(50):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(far.receive, 10)
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()
            await near.write(bytes([number]))
            assert await far.receive(10) == bytes([number])


async def test_read_cancelled_with_bytes_ready_leaves_them_for_the_next(
    ends: tuple[SocketStream, SocketStream],
) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    await near.write(b"kept")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await far.receive(10)
    with anyio.fail_after(DEADLINE_S):
        assert await far.receive(10) == b"kept"


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closing_wakes_the_reader(ends: tuple[SocketStream, SocketStream], turns: int) -> None:
    far = DirectStream(ends[1])
    ended = []

    async def read() -> None:
        try:
            await far.receive(10)
        except anyio.ClosedResourceError:
            ended.append(True)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await far.aclose()
    assert ended == [True]


async def test_peer_that_closed_is_told_apart(ends: tuple[SocketStream, SocketStream]) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    await near.aclose()
    with pytest.raises(anyio.EndOfStream):
        await far.receive(10)
    with pytest.raises(anyio.BrokenResourceError):
        await far.write(b"x")


@pytest.mark.parametrize("turns", range(5))
async def test_read_cancelled_while_bytes_arrive_leaves_them_for_the_next(
    ends: tuple[SocketStream, SocketStream], turns: int
) -> None:
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    received: list[bytes] = []

    async def read() -> None:
        received.append(await far.receive(10))

    with anyio.fail_after(DEADLINE_S):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await anyio.lowlevel.checkpoint()
                await near.write(b"kept and more")
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        while sum(map(len, received)) < len(b"kept and more"):
            received.append(await far.receive(4))
    assert b"".join(received) == b"kept and more"


async def test_loop_hears_of_bytes_nobody_reads_only_once(
    ends: tuple[SocketStream, SocketStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    original = DirectStream._readable

    def counted(stream: DirectStream) -> None:
        heard.append(stream)
        original(stream)

    monkeypatch.setattr(DirectStream, "_readable", counted)
    near, far = DirectStream(ends[0]), DirectStream(ends[1])
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.write, b"first")
            assert await far.receive(10) == b"first"
        await near.write(b"second")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert len(heard) == 2
        assert await far.receive(10) == b"second"
