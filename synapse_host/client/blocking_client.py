"""The blocking client: the same calls, driven without an event loop.

The methods of ``Calls`` suspend only where their transport does. The transport here blocks instead, so one step runs a
call to its end. A portal to an event loop in another thread would cost two thread changes a call.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from synapse_host.client.bulk import OnProgress
from synapse_host.client.calls import Calls, Item, OnRows, OnStatus, OnWait, Status
from synapse_host.client.exchange import Exchange, HostFacts, Received
from synapse_host.client.faults import ConnectionLost, HostUnreachable, ReplyMismatch
from synapse_host.client.generate_reply import GenerateReply
from synapse_host.client.job_parts import JobPart
from synapse_host.client.replies import EmbedReply
from synapse_host.client.rerank_reply import RerankReply
from synapse_host.client.transport import HELLO_DEADLINE_S, read_size, unreachable
from synapse_host.settings import resolve_paths

Answer = TypeVar("Answer")


class BlockingTransport:
    """One connection; its methods are coroutines that never suspend."""

    def __init__(self, connection: socket.socket) -> None:
        self.exchange = Exchange()
        self._connection = connection
        self._fault: Exception | None = None

    def greet(self) -> HostFacts:
        """Exchange hellos; raises the host's refusal of the connection."""
        self._write(self.exchange.hello())
        while self.exchange.host is None:
            self._raise_fault()
            self._read()
        return self.exchange.host

    async def submit(self, method: str, params: Mapping[str, Any], flow_id: str | None) -> int:
        """Send a request."""
        self._raise_fault()
        number, frame = self.exchange.request(method, params, flow_id)
        self._write(frame)
        return number

    async def result(self, number: int) -> Received:
        """Read until one answer is there."""
        try:
            while (received := self.exchange.take(number)) is None:
                self._raise_fault()
                self._read()
            return received
        finally:
            self.exchange.forget(number)

    async def answered(self, numbers: Collection[int]) -> int:
        """Read until one of the answers is there."""
        while (number := self.exchange.answered(numbers)) is None:
            self._raise_fault()
            self._read()
        return number

    def forget(self, number: int) -> None:
        """Give up an answer."""
        self.exchange.forget(number)

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)  # noqa: ASYNC251 - this transport blocks by design

    def close(self) -> None:
        """Close the connection."""
        self._fault = self._fault or ConnectionLost("the client was closed; open a new one")
        self._connection.close()

    def _write(self, frame: bytes) -> None:
        try:
            self._connection.sendall(frame)
        except TimeoutError:
            raise
        except OSError as fault:
            # The host may have said why before it closed.
            while self._fault is None and self.exchange.refusal is None:
                self._read()
            raise self.exchange.refusal or self._fault or fault from fault
        except BaseException:
            # Interrupted: part of the frame may be out, and the host would read the next one as its rest.
            self._fault = ConnectionLost("a request was interrupted half-sent; open a new client")
            raise

    def _read(self) -> None:
        try:
            self._receive()
        except TimeoutError:
            raise
        except OSError as fault:
            self._fault = ConnectionLost(f"the host closed the connection ({fault}); open a new client")
        except ReplyMismatch as fault:
            self._fault = fault

    def _receive(self) -> None:
        space = self.exchange.space()
        if space is not None:
            count = self._connection.recv_into(space)
            self.exchange.filled(count)
        else:
            data = self._connection.recv(read_size(self.exchange.wanted_bytes))
            count = len(data)
            self.exchange.feed(data)
        if not count:
            raise ConnectionResetError("end of stream")

    def _raise_fault(self) -> None:
        fault = self.exchange.refusal or self._fault
        if fault is not None:
            raise fault


class Client:
    """A connection to the host, for programs without an event loop. Threads may share it; their calls take turns.

    ``with Client.connect() as client: …``; or close it with ``close``. Every method is described at ``Calls``.
    """

    def __init__(self, transport: BlockingTransport, host: HostFacts) -> None:
        self._connection = transport
        self._calls = Calls(transport)
        self._turn = threading.RLock()
        #: What the host said of itself.
        self.host = host

    @classmethod
    def connect(cls, socket_path: str | Path | None = None) -> Client:
        """Connect to the user's host, or to the socket named.

        Raises:
            HostUnreachable: nothing answers there.
            SynapseError: the host refused the connection (too many of them, another user).

        """
        path = os.fspath(socket_path or resolve_paths().host_socket)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(HELLO_DEADLINE_S)
            _connect(connection, path)
            transport = BlockingTransport(connection)
            host = _greeted(transport, path)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return cls(transport, host)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, flow_id: str | None = None, retries: int = 0
    ) -> dict[str, Any]:
        """Call any method by name."""
        return self._run(self._calls.call(method, params, flow_id=flow_id, retries=retries))

    def embed_query(
        self, model: str | None, text: str, *, flow_id: str | None = None, retries: int = 0, **constraints: Any
    ) -> EmbedReply:
        """Embed one text."""
        return self._run(self._calls.embed_query(model, text, flow_id=flow_id, retries=retries, **constraints))

    def embed_batch(
        self,
        model: str | None,
        items: Sequence[Item],
        *,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> EmbedReply:
        """Embed several texts in one request."""
        return self._run(self._calls.embed_batch(model, items, flow_id=flow_id, retries=retries, **constraints))

    def embed_many(
        self,
        model: str | None,
        texts: Sequence[str],
        *,
        on_progress: OnProgress | None = None,
        concurrency: int = 2,
        retries: int = 0,
        request_key: str | None = None,
        on_wait: OnWait | None = None,
        **constraints: Any,
    ) -> EmbedReply:
        """Embed any number of texts; with a ``request_key`` by durable jobs, of which ``on_wait`` is told."""
        return self._run(
            self._calls.embed_many(
                model,
                texts,
                on_progress=on_progress,
                concurrency=concurrency,
                retries=retries,
                request_key=request_key,
                on_wait=on_wait,
                **constraints,
            )
        )

    def embed_jobs(
        self,
        model: str | None,
        parts: Iterable[JobPart],
        *,
        request_key: str,
        on_rows: OnRows | None = None,
        on_found: OnRows | None = None,
        on_wait: OnWait | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> Iterator[EmbedReply]:
        """The answer to each of ``parts``, in their order, by durable jobs."""
        replies = self._calls.embed_jobs(
            model,
            parts,
            request_key=request_key,
            on_rows=on_rows,
            on_found=on_found,
            on_wait=on_wait,
            retries=retries,
            **constraints,
        )
        try:
            while True:
                try:
                    reply = self._run(replies.__anext__())
                except StopAsyncIteration:
                    return
                yield reply
        finally:
            self._run(replies.aclose())

    def job_status(self, job_id: str) -> Status:
        """The status of an embed job."""
        return self._run(self._calls.job_status(job_id))

    def job_page(self, job_id: str, *, cursor: str | None = None, max_page_bytes: int | None = None) -> Status:
        """Committed rows of an embed job."""
        return self._run(self._calls.job_page(job_id, cursor=cursor, max_page_bytes=max_page_bytes))

    def job_resume(self, job_id: str) -> Status:
        """Go on with a job that waits for a login."""
        return self._run(self._calls.job_resume(job_id))

    def job_cancel(self, job_id: str | None = None, *, request_key: str | None = None) -> Status:
        """End a job that is wanted no more, or all open jobs of a ``request_key``."""
        return self._run(self._calls.job_cancel(job_id, request_key=request_key))

    def wait_for_job(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll an embed job until it is done or cancelled."""
        return self._run(self._calls.wait_for_job(job_id, on_state=on_state))

    def rerank(
        self,
        model: str | None,
        query: str,
        documents: Sequence[str],
        *,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> RerankReply:
        """Score documents against a query."""
        return self._run(self._calls.rerank(model, query, documents, flow_id=flow_id, retries=retries, **constraints))

    def generate(
        self,
        model: str,
        prompt: str,
        *,
        max_tokens: int,
        grammar: str | None = None,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> GenerateReply:
        """Generate text after a prompt, greedily."""
        return self._run(
            self._calls.generate(
                model, prompt, max_tokens=max_tokens, grammar=grammar, flow_id=flow_id, retries=retries, **constraints
            )
        )

    def model_load(self, **params: Any) -> Status:
        """Start loading a model."""
        return self._run(self._calls.model_load(**params))

    def model_status(self, *, job_id: str | None = None, model_id: str | None = None) -> Status:
        """The state of a load job or of a model."""
        return self._run(self._calls.model_status(job_id=job_id, model_id=model_id))

    def model_unload(self, model_id: str) -> Status:
        """Stop a model's worker."""
        return self._run(self._calls.model_unload(model_id))

    def models_list(self) -> dict[str, Any]:
        """Every model with its state, fingerprints and limits."""
        return self._run(self._calls.models_list())

    def models_catalog(
        self,
        *,
        query: str | None = None,
        task: str | None = None,
        runnable_here: bool | None = None,
        installed: bool | None = None,
    ) -> Status:
        """The models of the catalog that pass every filter given."""
        asked = self._calls.models_catalog(query=query, task=task, runnable_here=runnable_here, installed=installed)
        return self._run(asked)

    def models_download(self, catalog_id: str, *, request_key: str | None = None) -> Status:
        """Start or join installing a model of the catalog."""
        return self._run(self._calls.models_download(catalog_id, request_key=request_key))

    def models_download_cancel(self, job_id: str) -> Status:
        """End a download for everybody who waits for it, unless it has ended."""
        return self._run(self._calls.models_download_cancel(job_id))

    def models_remove(self, catalog_id: str) -> dict[str, Any]:
        """Remove every install of a model of the catalog."""
        return self._run(self._calls.models_remove(catalog_id))

    def probe_start(self, models: Sequence[str], *, request_key: str | None = None) -> Status:
        """Start certifying models on this machine."""
        return self._run(self._calls.probe_start(models, request_key=request_key))

    def probe_report(self) -> dict[str, Any]:
        """What was measured on this machine."""
        return self._run(self._calls.probe_report())

    def wait_for_load(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a load job until its model is ready."""
        return self._run(self._calls.wait_for_load(job_id, on_state=on_state))

    def wait_for_download(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a download until it is committed or cancelled; raises the job's error when it failed."""
        return self._run(self._calls.wait_for_download(job_id, on_state=on_state))

    def wait_for_probe(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a probe job until it is done."""
        return self._run(self._calls.wait_for_probe(job_id, on_state=on_state))

    def _run(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        with self._turn:
            try:
                call.send(None)
            except StopIteration as done:
                answer: Answer = done.value
                return answer
            call.close()
            raise RuntimeError("a blocking call suspended; its transport must never await")


def _connect(connection: socket.socket, path: str) -> None:
    try:
        connection.connect(path)
    except OSError as error:
        raise unreachable(path, error) from error


def _greeted(transport: BlockingTransport, path: str) -> HostFacts:
    try:
        return transport.greet()
    except (TimeoutError, ConnectionLost) as fault:
        raise HostUnreachable(f"{path} accepted the connection but did not greet: {fault!r}") from fault
