"""A real HTTP server on the loopback that misbehaves as it is told: for tests of downloading. Threads and sockets only.

By itself it serves ``files`` with ranges and entity tags. ``plan`` puts misbehaviour before that, one plan a request.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import unquote, urlsplit

_LINGER_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one request.

    ``status`` other than 200 answers with it and no file. ``cut_after`` closes after so many bytes of the body,
    ``stall_after`` sends nothing more until the server ends. ``length`` is the Content-Length to claim, ``chunked``
    sends none and ``unsized`` neither, so that the body ends with its connection. ``piece`` is how many bytes are sent
    at once. ``no_ranges`` ignores the request's range, ``shifted`` answers it from another place. ``body`` replaces
    the file.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut_after: int | None = None
    stall_after: int | None = None
    length: int | None = None
    chunked: bool = False
    unsized: bool = False
    piece: int = 64 * 1024
    no_ranges: bool = False
    shifted: bool = False
    no_answer: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


class FileServer:
    """Serves while it is entered."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.seen: list[Seen] = []
        #: Set whenever a body stalls.
        self.stalled = threading.Event()
        self._plans: dict[str, list[Plan]] = {}
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: Where it listens, and nobody does once it ended.
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []

    def plan(self, path: str, *plans: Plan) -> None:
        """Answer the next requests for ``path`` by these, one each."""
        self._plans.setdefault(path, []).extend(plans)

    def requests(self, path: str) -> list[Seen]:
        """The requests for ``path``, in order."""
        return [seen for seen in self.seen if seen.path == path]

    def __enter__(self) -> FileServer:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        # Wakes a thread in accept, which closing alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            _shut(connection)
        for thread in self._threads:
            thread.join(_LINGER_S)

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        # The client went away, or the server ends.
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as reader:
            while (seen := _read_head(reader)) is not None:
                self.seen.append(seen)
                if not self._answer(connection, seen):
                    return

    def _answer(self, connection: socket.socket, seen: Seen) -> bool:
        plans = self._plans.get(seen.path)
        plan = plans.pop(0) if plans else Plan()
        if plan.no_answer:
            self._stall()
            return False
        body = plan.body if plan.body is not None else self.files.get(seen.path)
        if plan.status != 200 or body is None:
            status = 404 if plan.status == 200 else plan.status
            connection.sendall(_head(status, {"Content-Length": "0", **plan.headers}))
            return True
        return self._send_file(connection, seen, plan, body)

    def _send_file(self, connection: socket.socket, seen: Seen, plan: Plan, body: bytes) -> bool:
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', **plan.headers}
        status, start = 200, 0
        asked = re.fullmatch(r"bytes=(\d+)-", seen.headers.get("range", ""))
        if asked and not plan.no_ranges and seen.headers.get("if-range") in (None, headers["ETag"]):
            start = int(asked[1]) + (1 if plan.shifted else 0)
            if start >= len(body):
                connection.sendall(_head(416, {"Content-Length": "0"}))
                return True
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        part = body[start:]
        if plan.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif not plan.unsized:
            headers["Content-Length"] = str(len(part) if plan.length is None else plan.length)
        connection.sendall(_head(status, headers))
        return self._send_body(connection, plan, part)

    def _send_body(self, connection: socket.socket, plan: Plan, part: bytes) -> bool:
        limit = plan.stall_after if plan.stall_after is not None else plan.cut_after
        sent = part if limit is None else part[:limit]
        for at in range(0, len(sent), plan.piece):
            piece = sent[at : at + plan.piece]
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if plan.chunked else piece)
        if plan.stall_after is not None:
            self._stall()
            return False
        if plan.cut_after is not None:
            return False
        if plan.chunked:
            connection.sendall(b"0\r\n\r\n")
        # A claim that does not hold leaves the connection no use.
        return plan.length is None and not plan.unsized

    def _stall(self) -> None:
        self.stalled.set()
        self._ended.wait()


def _read_head(reader: object) -> Seen | None:
    lines = []
    while line := reader.readline(65_536):  # type: ignore[attr-defined]
        if line in (b"\r\n", b"\n"):
            break
        lines.append(line.decode("latin-1").rstrip("\r\n"))
    if not lines:
        return None
    method, target, _ = lines[0].split(" ", 2)
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    # A proxy is asked by the whole address.
    return Seen(method, unquote(urlsplit(target).path), {name.lower(): value for name, value in headers.items()})


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
