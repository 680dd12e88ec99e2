"""The asynchronous client: many calls of many tasks over one connection.

There is no reading task. Whoever waits first reads for all, and hands the reading on when its own answer is there: an
answer then needs no change of task, and a client needs no task group.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio

from synapse_host.client.calls import Calls
from synapse_host.client.exchange import Exchange, HostFacts, Received
from synapse_host.client.faults import ConnectionLost, HostUnreachable, ReplyMismatch
from synapse_host.client.transport import HELLO_DEADLINE_S, read_size, unreachable
from synapse_host.direct_stream import GONE, DirectStream
from synapse_host.settings import resolve_paths


class AsyncTransport:
    """One connection shared by any number of tasks."""

    def __init__(self, stream: DirectStream) -> None:
        self.exchange = Exchange()
        self._stream = stream
        self._reading = False
        self._waiting: dict[int, anyio.Event] = {}
        self._fault: Exception | None = None

    async def greet(self) -> HostFacts:
        """Exchange hellos; raises the host's refusal of the connection."""
        await self._write(self.exchange.hello())
        while self.exchange.host is None:
            await self._read()
            self._raise_fault()
        return self.exchange.host

    async def submit(self, method: str, params: Mapping[str, Any], flow_id: str | None) -> int:
        """Send a request."""
        self._raise_fault()
        number, frame = self.exchange.request(method, params, flow_id)
        try:
            await self._write(frame)
            self._raise_fault()
        except BaseException:
            self.exchange.forget(number)
            raise
        return number

    async def result(self, number: int) -> Received:
        """Wait for one answer, reading for all who wait where nobody else does."""
        try:
            while (received := self.exchange.take(number)) is None:
                await self._progress((number,))
            return received
        finally:
            self.exchange.forget(number)
            self._hand_on()

    async def answered(self, numbers: Collection[int]) -> int:
        """Wait for the first of several answers."""
        try:
            while (number := self.exchange.answered(numbers)) is None:
                await self._progress(numbers)
            return number
        finally:
            self._hand_on()

    def forget(self, number: int) -> None:
        """Give up an answer."""
        self.exchange.forget(number)

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        await anyio.sleep(seconds)

    async def close(self) -> None:
        """Close the connection; calls still waiting raise ``ConnectionLost``."""
        self._fail(ConnectionLost("the client was closed; open a new one"))
        await self._stream.aclose()

    async def _write(self, frame: bytes) -> None:
        if self._stream.torn:
            self._fail(ConnectionLost("an earlier request was cancelled half-sent; open a new connection"))
            return
        try:
            await self._stream.write(frame)
        except GONE:
            # The host may have said why before it closed.
            while self._fault is None and not self._reading:
                await self._read()

    async def _read(self) -> None:
        self._reading = True
        try:
            data = await self._stream.receive(read_size(self.exchange.wanted_bytes))
            completed = self.exchange.feed(data)
        except GONE as fault:
            self._fail(ConnectionLost(f"the host closed the connection ({type(fault).__name__}); open a new one"))
            return
        except ReplyMismatch as fault:
            self._fail(fault)
            return
        finally:
            self._reading = False
        for number in completed:
            if (event := self._waiting.get(number)) is not None:
                event.set()

    async def _progress(self, numbers: Collection[int]) -> None:
        """Read, or wait for whoever does to come upon one of ``numbers``."""
        self._raise_fault()
        if not self._reading:
            await self._read()
            return
        event = anyio.Event()
        self._waiting.update(dict.fromkeys(numbers, event))
        try:
            await event.wait()
        finally:
            for number in numbers:
                del self._waiting[number]

    def _hand_on(self) -> None:
        """Wake somebody to read, unless somebody does."""
        if not self._reading and self._waiting:
            next(iter(self._waiting.values())).set()

    def _fail(self, fault: Exception) -> None:
        if self._fault is None:
            self._fault = self.exchange.refusal or fault
        for event in self._waiting.values():
            event.set()

    def _raise_fault(self) -> None:
        if self._fault is None and self.exchange.refusal is not None:
            self._fail(self.exchange.refusal)
        if self._fault is not None:
            # Whoever it is raised for adds the way it took.
            raise self._fault.with_traceback(None)


class AsyncClient(Calls):
    """A connection to the host, for anyio and asyncio programs.

    ``async with await AsyncClient.connect() as client: …``; or close it with ``aclose``.
    """

    def __init__(self, transport: AsyncTransport, host: HostFacts) -> None:
        super().__init__(transport)
        self._connection = transport
        #: What the host said of itself.
        self.host = host

    @classmethod
    async def connect(cls, socket_path: str | Path | None = None) -> AsyncClient:
        """Connect to the user's host, or to the socket named.

        Raises:
            HostUnreachable: nothing answers there.
            SynapseError: the host refused the connection (too many of them, another user).

        """
        path = os.fspath(socket_path or resolve_paths().host_socket)
        try:
            stream = await anyio.connect_unix(path)
        except OSError as error:
            raise unreachable(path, error) from error
        transport = AsyncTransport(DirectStream(stream))
        try:
            with anyio.fail_after(HELLO_DEADLINE_S):
                return cls(transport, await transport.greet())
        except BaseException as fault:
            with anyio.CancelScope(shield=True):
                await transport.close()
            if isinstance(fault, (TimeoutError, ConnectionLost)):
                raise HostUnreachable(f"{path} accepted the connection but did not greet: {fault!r}") from fault
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
