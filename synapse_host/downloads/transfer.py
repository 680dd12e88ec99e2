"""One file from one address: asked for as often as is worth it, each attempt going on where the last was cut off.

The event loop only receives. Hashing and writing happen in a thread, a block behind, and having it all on the disk in
another: the last byte would otherwise be followed by a long wait for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.ingest import Ingest
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.downloads.answer import BeginAnew, Body, Refused, read_answer, strong_tag
from synapse_host.downloads.attempts import Attempts
from synapse_host.downloads.failures import artifact_invalid, download_failed, storage_failure
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.patience import WINDOW_S, Pace, Patience
from synapse_host.downloads.sources import Address
from synapse_host.errors import ArtifactInvalid, StoreFailure, SynapseError
from synapse_host.time_limits import TimeLimits
from synapse_host.values import value_object

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

#: Bytes handed to the thread at once: large enough that the handing over costs nothing beside the hashing.
BLOCK_BYTES = 1024 * 1024
#: Bytes written since the last flush that begin another.
FLUSH_BYTES = 64 * 1024 * 1024
#: Blocks received but not yet written: with them the loop rides out a slow write.
_BLOCKS_AHEAD = 4


@value_object
class TransferRules:
    """What a transfer is given from outside.

    ``idle_s`` seconds of ``clock`` without a byte of the body end it, however many attempts they hold. ``now`` is the
    time of day, for servers that name one. ``patience`` is how little it may bring.
    """

    idle_s: float
    limits: TimeLimits
    pause: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    now: Callable[[], datetime]
    patience: Patience


class _Passing(Exception):
    """An attempt failed in a way that may pass; ``failure`` is what to say when it does not."""

    def __init__(self, failure: SynapseError, asked_s: float | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.asked_s = asked_s


class Transfer:
    """Fetches one file into the cache."""

    def __init__(
        self,
        cache: BlobCache,
        session: aiohttp.ClientSession,
        wanted: WantedFile,
        address: Address,
        rules: TransferRules,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._cache = cache
        self._session = session
        self._wanted = wanted
        self._address = address
        self._rules = rules
        self._on_bytes = on_bytes
        self._ingest: Ingest
        self._received = 0
        self._last_byte = rules.clock()
        self._pace = Pace(rules.patience)
        self._etag: str | None = None
        self._write_fault: Exception | None = None
        self._unflushed = 0
        self._flushing = False

    async def run(self, owner: str) -> BlobMetadata:
        """The content in the cache, pinned by ``owner``.

        Raises:
            DownloadFailed: network, server or a full disk.
            ArtifactInvalid: what came is not what is wanted.
            StoreFailure: the cache cannot be written, for another reason than a full disk.

        """
        try:
            self._ingest = await anyio.to_thread.run_sync(self._cache.ingest)
            try:
                await self._receive()
                return await anyio.to_thread.run_sync(self._commit, owner)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._ingest.close)
        except StoreFailure as failure:
            raise storage_failure(self._wanted.name, failure) from failure

    async def _receive(self) -> None:
        attempts, furthest = Attempts(), 0
        while True:
            try:
                await self._attempt()
                return
            except _Passing as passing:
                # What came once more, after beginning anew, is nothing new.
                brought = self._received - furthest >= self._rules.patience.attempt_bytes
                furthest = max(furthest, self._received)
                wait_s = attempts.next_wait_s(brought_bytes=brought, asked_s=passing.asked_s)
                if wait_s is None or wait_s > self._left_s():
                    raise passing.failure from passing
                _log.info("%s: attempt %d failed: %s", self._wanted.name, attempts.made, passing)
            await self._rules.pause(wait_s)

    async def _attempt(self) -> None:
        import aiohttp

        try:
            with self._rules.limits.limit(self._left_s()):
                response = await self._ask()
            async with response:
                await self._take(response)
        except TimeoutError as stalled:
            raise self._network(f"sent nothing for {self._rules.idle_s:g} s") from stalled
        except aiohttp.RedirectClientError as fault:
            # What follows a question mark may be a signature.
            shown = str(fault).partition("?")[0]
            raise self._misled(f"the server redirects to {shown}, which is no web address") from fault
        except aiohttp.TooManyRedirects as fault:
            raise self._misled("the server redirects without end") from fault
        except (aiohttp.ClientSSLError, aiohttp.InvalidURL) as fault:
            raise self._network(str(fault)) from fault
        except (aiohttp.ClientHttpProxyError, aiohttp.ClientProxyConnectionError) as fault:
            raise self._network(f"the proxy refused: {fault}") from fault
        except aiohttp.ClientConnectorError as nobody:
            # Its own text speaks of TLS also where there is none.
            where, why = f"{nobody.host}:{nobody.port}", nobody.strerror or nobody.os_error
            raise _Passing(self._network(f"no connection to {where} ({why})")) from nobody
        except (aiohttp.ClientError, OSError) as cut:
            raise _Passing(self._network(str(cut) or type(cut).__name__)) from cut

    async def _ask(self) -> aiohttp.ClientResponse:
        import aiohttp

        try:
            return await self._session.get(
                self._address.url, headers=self._headers(), middlewares=_login(self._address)
            )
        except aiohttp.ClientError:
            raise
        except ValueError as fault:
            # A redirect may lead to a port out of range, or to a name that no resolver takes.
            raise self._misled(f"the server redirects to what is no address ({fault})") from fault

    async def _take(self, response: aiohttp.ClientResponse) -> None:
        match read_answer(response.status, response.headers, self._received, now=self._rules.now()):
            case Refused() as refused:
                raise self._refusal(refused)
            case BeginAnew():
                await self._begin_anew()
                raise _Passing(self._misled("the server cannot go on where it was cut off"), asked_s=0.0)
            case Body() as body:
                self._require_size(body.size)
                if body.start != self._received:
                    await self._begin_anew()
                self._etag = strong_tag(response.headers.get("ETag"))
                size = body.size if self._wanted.size is None else self._wanted.size
                await self._pump(response, size)
                if body.until_closed:
                    self._require_uncut(size)
                self._require_whole()

    async def _pump(self, response: aiohttp.ClientResponse, size: int | None) -> None:
        """Receive and write, each in a task; what either met is raised once both are done."""
        send, receive = anyio.create_memory_object_stream[list[bytes]](_BLOCKS_AHEAD)
        async with anyio.create_task_group() as tasks:
            left = None if size is None else max(0, size - self._received)
            tasks.start_soon(self._write_blocks, receive, tasks, left)
            fault = await self._read_blocks(response, send)
        if (fault := self._write_fault or fault) is not None:
            raise fault

    async def _read_blocks(
        self, response: aiohttp.ClientResponse, send: MemoryObjectSendStream[list[bytes]]
    ) -> Exception | None:
        # Pieces as they came: joining them would copy every byte once more.
        block: list[bytes] = []
        fault, size, more = None, 0, True
        with send:
            try:
                while more:
                    with self._rules.limits.limit(self._left_s()):
                        data, more = await self._piece(response)
                    self._count(len(data))
                    block.append(data)
                    size += len(data)
                    if size >= BLOCK_BYTES:
                        await send.send(block)
                        block, size = [], 0
            except Exception as met:
                fault = met
            # Where the writer has ended, it says why.
            with suppress(anyio.BrokenResourceError):
                # Also what came before a cut: the next attempt asks for the rest.
                await send.send(block)
        return fault

    @staticmethod
    async def _piece(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The next bytes of the body, and whether more may follow."""
        data, end_of_chunk = await response.content.readchunk()
        return data, bool(data) or end_of_chunk

    async def _write_blocks(
        self, receive: MemoryObjectReceiveStream[list[bytes]], tasks: TaskGroup, left: int | None
    ) -> None:
        with receive:
            try:
                if left is not None:
                    # A body of unknown size is watched while it is written.
                    await anyio.to_thread.run_sync(self._ingest.require_room, left)
                async for block in receive:
                    await anyio.to_thread.run_sync(self._write, block)
                    if self._unflushed >= FLUSH_BYTES and not self._flushing:
                        self._unflushed, self._flushing = 0, True
                        tasks.start_soon(self._flush)
            except Exception as fault:
                self._write_fault = fault

    def _write(self, block: list[bytes]) -> None:
        for data in block:
            self._ingest.write(data)
            self._unflushed += len(data)

    async def _flush(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._ingest.flush)
        except StoreFailure as fault:
            # The disk tells a failed write once: the commit would not hear of it again.
            self._write_fault = fault
        finally:
            self._flushing = False

    async def _begin_anew(self) -> None:
        await anyio.to_thread.run_sync(self._ingest.close)
        self._ingest = await anyio.to_thread.run_sync(self._cache.ingest)
        self._received, self._etag = 0, None
        self._on_bytes(0)

    def _headers(self) -> dict[str, str]:
        if not self._received:
            return {}
        headers = {"Range": f"bytes={self._received}-"}
        if self._etag is not None:
            headers["If-Range"] = self._etag
        return headers

    def _left_s(self) -> float:
        """Seconds until nothing was sent for too long."""
        return max(0.0, self._last_byte + self._rules.idle_s - self._rules.clock())

    def _count(self, added: int) -> None:
        self._received += added
        if added:
            self._last_byte = self._rules.clock()
            self._refuse_slower(added)
        self._refuse_longer()
        self._on_bytes(self._received)

    def _refuse_slower(self, added: int) -> None:
        if self._pace.is_too_slow(added, self._last_byte):
            least = self._rules.patience.window_bytes
            raise self._network(f"sent less than {least} bytes in {WINDOW_S:g} s")

    def _refuse_longer(self) -> None:
        if self._wanted.size is not None and self._received > self._wanted.size:
            raise self._invalid(None, self._received)

    def _require_size(self, told: int | None) -> None:
        if None not in (told, self._wanted.size) and told != self._wanted.size:
            raise self._invalid(None, told)

    def _require_uncut(self, size: int | None) -> None:
        if size is not None and self._received < size:
            raise _Passing(self._network(f"the connection ended after {self._received} of {size} bytes"))

    def _require_whole(self) -> None:
        if self._wanted.size not in (None, self._received) or self._ingest.sha256 != self._wanted.sha256:
            raise self._invalid(self._ingest.sha256, self._received)

    def _commit(self, owner: str) -> BlobMetadata:
        name = self._wanted.name
        kind = name.rpartition(".")[2] if name.endswith((".safetensors", ".gguf")) else "unknown"
        return self._ingest.commit(name=name, source_url=self._address.shown, owner=owner, file_format=kind)

    def _network(self, what: str, remedy: str = "check the network, then download again") -> SynapseError:
        name = self._wanted.name
        said = f"{name} could not be fetched from {self._address.shown}: {what}; {remedy}"
        return download_failed(name, "network", said)

    def _misled(self, what: str) -> SynapseError:
        """The network is in order, the server is not."""
        return self._network(what, self._address.remedy)

    def _refusal(self, refused: Refused) -> Exception:
        hint = self._address.login_remedy if refused.status < 500 else "download again later"
        failure = download_failed(
            self._wanted.name,
            "http_status",
            f"{self._address.shown} answered with HTTP status {refused.status}; {hint}",
            http_status=refused.status,
        )
        return _Passing(failure, refused.retry_after_s) if refused.passing else failure

    def _invalid(self, actual_sha256: str | None, actual_size: int | None) -> ArtifactInvalid:
        return artifact_invalid(
            self._wanted.name,
            expected_sha256=self._wanted.sha256,
            actual_sha256=actual_sha256,
            expected_size=self._wanted.size,
            actual_size=actual_size,
        )


def _login(address: Address) -> tuple[aiohttp.ClientMiddlewareType, ...]:
    """Sends the token to the address's own host, and to no other that it redirects to.

    Not as a header of the call: there it would be refused beside a login of ~/.netrc, which it is to win over.
    """
    if address.token is None:
        return ()
    token, origin = address.token, None

    async def log_in(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        nonlocal origin
        origin = origin or request.url.origin()
        if request.url.origin() == origin:
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)

    return (log_in,)
