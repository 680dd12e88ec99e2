"""A bare peer of the consumer socket, for tests that send what no client library would."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.abc import ByteStream

from synapse_host.framing import FrameDecoder

#: Seconds any single wait of a test may take.
DEADLINE_S = 30.0


class RawPeer:
    """One connection, frame by frame."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder(1 << 30)

    @classmethod
    async def connect(cls, path: Path) -> RawPeer:
        """Connect without a hello."""
        return cls(await anyio.connect_unix(path))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send(data)

    async def send_frame(self, payload: bytes) -> None:
        """Send one frame of any content."""
        await self.send_bytes(struct.pack("<I", len(payload)) + payload)

    async def send(self, document: Any) -> None:
        """Send one frame of JSON."""
        await self.send_frame(orjson.dumps(document))

    async def receive_frame(self) -> bytes:
        """The next frame; fails the test when none comes in time."""
        with anyio.fail_after(DEADLINE_S):
            while (frame := self._decoder.next_frame()) is None:
                self._decoder.feed(await self.stream.receive(65536))
        return frame

    async def receive(self) -> Any:
        """The next frame as JSON."""
        return orjson.loads(await self.receive_frame())

    async def ask(self, document: Any) -> Any:
        """Send one frame of JSON and take the next one."""
        await self.send(document)
        return await self.receive()

    async def is_closed(self) -> bool:
        """Whether the host closes the connection, in time and with nothing more to say."""
        try:
            with anyio.fail_after(DEADLINE_S):
                await self.stream.receive(1)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True
        return False

    async def close(self) -> None:
        """Go away."""
        await self.stream.aclose()
