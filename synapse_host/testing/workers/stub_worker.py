"""A well-behaved worker without an engine.

``python -m synapse_host.testing.workers.stub_worker BACKEND --socket P --nonce N``. Stdlib only, and it shares no code
with the real worker or the host: a second reading of worker protocol v3 to hold the first against. LOAD takes any
path; ``dims`` of runtime_config says how wide its vectors are (4 without it). What it answers is in ``stub_answers``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from typing import Any

from synapse_host.testing.workers.stub_answers import ANSWERS, StubModels, StubRefusal

_LENGTH = struct.Struct("<I")
_MAX_FRAME = 64 * 1024 * 1024
#: Requests with a raw frame after them.
RAW_REQUESTS = frozenset({"EMBED_BATCH", "RERANK", "RERANK_SEQUENCES", "GENERATE"})


class StubWorker:
    """One connection to the host; a subclass overrides the step at which it misbehaves."""

    def __init__(self, socket_path: str, nonce: str) -> None:
        self.nonce = nonce
        self.socket_path = socket_path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.models = StubModels()

    def run(self) -> int:
        """Serve until SHUTDOWN or the end of the connection; returns the exit status."""
        self.socket.connect(self.socket_path)
        self.send_hello()
        acknowledged = self.receive()
        if acknowledged is None or json.loads(acknowledged).get("accept") is not True:
            return 1
        while (payload := self.receive()) is not None:
            request = json.loads(payload)
            if request["type"] == "SHUTDOWN":
                if self.shut_down():
                    return 0
                continue
            raw = self.receive() if request["type"] in RAW_REQUESTS else None
            self.handle(request, raw or b"")
        return 0

    def hello(self) -> dict[str, Any]:
        """The fields of HELLO."""
        engine = {"engine": "stub", "version": "1", "build_flags": {}}
        packed = {"widths": [256], "max_rows": 8}
        frame = {"pid": os.getpid(), "max_frame": _MAX_FRAME}
        return {"v": 3, "nonce": self.nonce, "engine": engine, "packed": packed, **frame}

    def send_hello(self) -> None:
        """Open the conversation."""
        self.send(json.dumps(self.hello()).encode())

    def shut_down(self) -> bool:
        """Whether SHUTDOWN is obeyed."""
        return True

    def handle(self, request: dict[str, Any], raw: bytes) -> None:
        """Answer one request."""
        self.respond(request, *self.fields(request, raw))

    def fields(self, request: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes | None]:
        """The fields of the reply beside ``req_id``, and the raw frame of those that have one."""
        try:
            if request["type"] not in ANSWERS:
                raise StubRefusal("unsupported_request", f"the stub does not answer {request['type']}")
            return ANSWERS[request["type"]](self.models, request, raw)
        except StubRefusal as refusal:
            return {"type": "ERR", "code": refusal.code, "msg": str(refusal)}, None

    def respond(self, request: dict[str, Any], fields: dict[str, Any], payload: bytes | None) -> None:
        """Send the frames of a reply."""
        self.reply(request, **fields)
        if payload is not None:
            self.send(payload)

    def reply(self, request: dict[str, Any], **fields: Any) -> None:
        """Send a control frame that answers ``request``."""
        self.send(json.dumps({"req_id": request["req_id"], **fields}).encode())

    def send(self, payload: bytes) -> None:
        """Send one frame."""
        self.socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> bytes | None:
        """The next frame, or None at the end."""
        header = self._exactly(_LENGTH.size)
        return None if header is None else self._exactly(_LENGTH.unpack(header)[0])

    def _exactly(self, count: int) -> bytes | None:
        received = bytearray()
        while len(received) < count:
            data = self.socket.recv(count - len(received))
            if not data:
                return None
            received += data
        return bytes(received)


def launch_arguments(arguments: list[str]) -> tuple[str, str]:
    """Socket path and nonce out of a worker's command line."""
    return arguments[arguments.index("--socket") + 1], arguments[arguments.index("--nonce") + 1]


if __name__ == "__main__":
    sys.exit(StubWorker(*launch_arguments(sys.argv)).run())
