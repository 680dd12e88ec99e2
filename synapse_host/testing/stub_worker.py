"""A well-behaved worker without an engine: ``python -m synapse_host.testing.stub_worker BACKEND --socket P --nonce N``.

Stdlib only, and it shares no code with the real worker or the host: a second reading of worker protocol v3 to hold
the first against. LOAD takes any path; ``dims`` of runtime_config says how wide its vectors are (4 without it). A
vector depends on the tokens of its own row alone.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from array import array
from typing import Any

_LENGTH = struct.Struct("<I")
_MAX_FRAME = 64 * 1024 * 1024
_DEFAULT_DIMS = 4


def stub_vector(tokens: list[int], dims: int) -> list[float]:
    """The vector of one row: small exact fractions, none of them zero."""
    mark = sum((place + 1) * token for place, token in enumerate(tokens)) % 8191
    return [((mark + 31 * axis) % 127 + 1) / 128 for axis in range(dims)]


class StubWorker:
    """One connection to the host; a subclass overrides the step at which it misbehaves."""

    def __init__(self, socket_path: str, nonce: str) -> None:
        self.nonce = nonce
        self.socket_path = socket_path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.models: dict[str, int] = {}
        self.loads = 0

    def run(self) -> int:
        """Serve until SHUTDOWN or the end of the connection; returns the exit status."""
        self.socket.connect(self.socket_path)
        self.send_hello()
        acknowledged = self.receive()
        if acknowledged is None or json.loads(acknowledged).get("accept") is not True:
            return 1
        while (payload := self.receive()) is not None:
            request = json.loads(payload)
            if request["type"] == "SHUTDOWN" and self.shut_down():
                return 0
            raw = self.receive() if request["type"] == "EMBED_BATCH" else None
            self.handle(request, raw or b"")
        return 0

    def hello(self) -> dict[str, Any]:
        """The fields of HELLO."""
        engine = {"engine": "stub", "version": "1", "build_flags": {}}
        return {"v": 3, "nonce": self.nonce, "engine": engine, "pid": os.getpid(), "max_frame": _MAX_FRAME}

    def send_hello(self) -> None:
        """Open the conversation."""
        self.send(json.dumps(self.hello()).encode())

    def shut_down(self) -> bool:
        """Whether SHUTDOWN is obeyed."""
        return True

    def handle(self, request: dict[str, Any], raw: bytes) -> None:
        """Answer one request."""
        kind = request["type"]
        if kind == "LOAD":
            self.load(request)
        elif kind == "EMBED_BATCH":
            self.embed(request, raw)
        elif kind == "UNLOAD":
            self.unload(request)
        elif kind == "PING":
            self.reply(request, type="PONG", rss_mb=1, models_loaded=len(self.models))

    def load(self, request: dict[str, Any]) -> None:
        """Answer LOAD."""
        self.loads += 1
        model_ref = f"stub-{self.loads}"
        self.models[model_ref] = int(request["runtime_config"].get("dims", _DEFAULT_DIMS))
        self.reply(request, type="LOADED", model_ref=model_ref, dims=self.models[model_ref], cold_load_ms=0)

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        """Answer EMBED_BATCH."""
        if request["model_ref"] not in self.models:
            text = f"model_ref {request['model_ref']!r} is not loaded here"
            self.reply(request, type="ERR", code="model_not_loaded", msg=text)
            return
        header, vectors = self.vectors(request, raw)
        self.reply(request, **header)
        self.send(vectors)

    def unload(self, request: dict[str, Any]) -> None:
        """Answer UNLOAD."""
        self.models.pop(request["model_ref"], None)
        self.reply(request, type="UNLOADED")

    def vectors(self, request: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes]:
        """The header and the raw frame of VECTORS."""
        tokens = struct.unpack(f"<{len(raw) // 4}i", raw)
        dims = self.models[request["model_ref"]]
        values = array("f")
        start = 0
        for item in request["items"]:
            row = list(tokens[start : start + item["n_tokens"]])
            values.extend(stub_vector(row, dims))
            start += item["n_tokens"]
        if sys.byteorder == "big":
            values.byteswap()
        return {"type": "VECTORS", "dims": dims, "n": len(request["items"])}, values.tobytes()

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
