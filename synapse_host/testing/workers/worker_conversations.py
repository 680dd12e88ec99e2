"""Conversations with a real worker that go wrong in every way a host could, and what the worker must make of each.

The worker is ``forking_worker``. An ordinary frame must be answered by the one reply to it, a frame that is no request
by ERR without a request id and the end of the connection; nothing may be left unanswered.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from synapse_host.framing import HEADER_BYTES, frame_header
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.reply_check import check_raw, check_reply
from synapse_host.testing.fuzz.mutated_frames import FrameMaker, wire_bytes
from synapse_host.testing.workers.fake_engine import load_request
from synapse_host.testing.workers.forking_worker import DIMS, ESCAPED, NONCE, RAISING_TOKEN
from synapse_host.worker_protocol.codec import decode_hello, decode_request, decode_response, encode
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.frame_budget import row_counts
from synapse_host.worker_protocol.messages import (
    ERR_CODES,
    PROTOCOL_VERSION,
    REQUESTS,
    AdmitShape,
    Err,
    EvictShape,
    HelloAck,
    Load,
    Message,
    PackedAdmit,
    PackedEvict,
    ProgressReport,
    Shutdown,
)
from synapse_host.worker_protocol.progress import ProgressRule

Tally = Counter[str]
_MAX_FRAME = 1024 * 1024
_DEADLINE_S = 30.0
_OPERATIONS = ("embed", "rerank", "generate")
#: Values that fit what the plugin declares, mostly.
_SMALL: Mapping[str, Sequence[Any]] = {
    "shape": (128, 256),
    "width": (256, 384, 256, 384, 7),
    "pooling": ("mean", "mean", "max"),
    "max_tokens": (4, 0),
}
#: Chances that a frame is not what it should be, each of its kind.
_FAULTY, _WILD, _BROKEN, _LAST = 0.008, 0.02, 0.008, 0.035

#: What a run must have reached to count as one.
HANDLERS = frozenset(f"{name} {outcome}" for name in REQUESTS for outcome in ("answered", "refused")) - {
    *("PING refused", "SHUTDOWN refused")
} | {"faults"}


class Conversation:
    """One connection to a fresh worker."""

    def __init__(self, path: Path, load: Load, maker: FrameMaker, tally: Tally) -> None:
        self.maker, self.tally, self.load = maker, tally, load
        self.frames = 0
        self._refs: list[tuple[str, str]] = []
        #: Wire type of an admission -> the model and the size last admitted by one.
        self._admitted: dict[str, dict[str, Any]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_DEADLINE_S)
        self._socket.connect(str(path))
        self._stream: IO[bytes] = self._socket.makefile("rb")

    def run(self, requests: int) -> None:
        """Shake hands, load a model for each operation and ask ``requests`` times, or until the worker gives up."""
        with self._socket, self._stream:
            hello = decode_hello(self._require_frame())
            assert hello.nonce == NONCE
            ack = HelloAck(PROTOCOL_VERSION, accept=True, max_frame=_MAX_FRAME)
            alive = self._tell(wire_bytes(ack.to_wire() if self.maker.draw.random() < 0.95 else {"v": 3}), ack=True)
            for operation in _OPERATIONS if alive else ():
                config = {**self.load.runtime_config, "operation": operation}
                self._ask(encode(replace(self.load, req_id=f"load-{operation}", runtime_config=config)))
            while alive and requests:
                requests -= 1
                alive = self._ask(self._request())
            if alive:
                self._leave()

    def _request(self) -> bytes:
        kind, roll = self._kind(), self.maker.draw.random()
        if self.maker.draw.random() < _LAST:
            return encode(Shutdown())
        if roll < _FAULTY:
            return wire_bytes(self.maker.with_one_fault(kind))
        wire = self._fitting(kind)
        if roll < _FAULTY + _WILD:
            wire = self.maker.wild(wire)
        payload = wire_bytes(wire)
        return self.maker.broken(payload) if roll > 1 - _BROKEN else payload

    def _kind(self) -> type[Message]:
        """Any request, or the one of which some outcome has been reached least."""
        if self.maker.draw.random() < 0.5:
            return self.maker.pick(_ASKED)
        kind = min(_ASKED, key=lambda kind: min(self._reached(kind).values()))
        wants_admission = kind in _ADMISSIONS and _ADMISSIONS[kind].TYPE not in self._admitted
        return _ADMISSIONS[kind] if wants_admission else kind

    def _reached(self, kind: type[Message]) -> dict[str, int]:
        outcomes = (f"{kind.TYPE} answered", f"{kind.TYPE} refused")
        return {outcome: self.tally[outcome] for outcome in outcomes if outcome in HANDLERS}

    def _refusals_lack(self, kind: type[Message]) -> bool:
        reached = list(self._reached(kind).values())
        return reached[-1] < reached[0]

    def _fitting(self, kind: type[Message]) -> dict[str, Any]:
        """A request that the worker has everything for, mostly."""
        draw, wire = self.maker.draw, self.maker.lawful(kind)
        if kind is Load:
            config = dict(self.load.runtime_config)
            if draw.random() < 0.3:
                config[draw.choice(list(config))] = draw.choice(("", "x", "\x00", "9" * 5000, "/"))
            return self.load.to_wire() | {"runtime_config": config}
        wire["req_id"] = f"r-{self.frames}"
        refs = [ref for ref, operation in self._refs if operation == kind.OPERATION] or [ref for ref, _ in self._refs]
        known = 0.5 if self._refusals_lack(kind) else 0.98
        if "model_ref" in wire and refs and draw.random() < known:
            wire["model_ref"] = draw.choice(refs[:1] * 3 + refs)
        if kind.OPERATION == "unload" and draw.random() < 0.8 and len(self._refs) > len(_OPERATIONS):
            wire["model_ref"] = self._refs.pop()[0]
        wire.update({name: draw.choice(values) for name, values in _SMALL.items() if name in wire})
        if draw.random() < 0.9:
            wire.pop("grammar", None)
        if (
            kind.OPERATION == "evict"
            and (admitted := self._admitted.get(_ADMISSIONS[kind].TYPE))
            and draw.random() < 0.8
        ):
            wire.update(admitted)
        return wire

    def _raw_for(self, request: Message) -> bytes:
        draw = self.maker.draw
        tokens = sum(row_counts(request)) if row_counts(request) else draw.randint(1, 5)
        if tokens > 64 or draw.random() < 0.05:
            return draw.randbytes(draw.randint(0, 40))
        first = RAISING_TOKEN if draw.random() < 0.1 else 1
        return b"".join(token.to_bytes(4, "little") for token in [first] + [2] * (tokens - 1)) if tokens else b""

    def _ask(self, payload: bytes) -> bool:
        """Send one control frame, and its raw frame where it is a request with one; False once the worker is gone."""
        try:
            request = decode_request(payload)
        except ProtocolFault:
            return self._tell(payload)
        if isinstance(request, Shutdown):
            self._send(payload)
            assert self._frame() is None, "SHUTDOWN was answered by a frame"
            self.tally["SHUTDOWN answered"] += 1
            return False
        raw = self._raw_for(request) if request.RAW else None
        self._send(payload, raw)
        self._take_reply(request, raw)
        return True

    def _tell(self, payload: bytes, *, ack: bool = False) -> bool:
        """Send a frame that is no request; whether the worker is still there."""
        self._send(payload)
        if ack and payload != wire_bytes({"v": 3}):
            return True
        self._take_fault()
        return False

    def _take_fault(self, *, hung_up: bool = False) -> None:
        frame = self._frame()
        if frame is None and hung_up:
            # A worker that has not yet put the last request away when its host hangs up ends without a word.
            return
        assert frame is not None, "the worker ended without saying why"
        reply = decode_response(frame)
        assert isinstance(reply, Err), reply
        assert (reply.code, reply.req_id) == ("invalid_request", None)
        assert self._frame() is None, "the worker went on after a fault"
        self.tally["faults"] += 1

    def _take_reply(self, request: Any, raw: bytes | None) -> None:
        rule = ProgressRule(request.req_id, request.OPERATION)
        while isinstance(reply := decode_response(self._require_frame()), ProgressReport):
            rule.accept(reply)
        try:
            check_reply(request, reply, sent_bytes=len(raw or b""), dims=DIMS)
        except WorkerRefusal:
            assert reply.to_wire()["code"] in ERR_CODES, reply
            self.tally[f"{request.TYPE} refused"] += 1
            return
        check_raw(request, reply, self._require_frame() if reply.RAW else None)
        if isinstance(request, Load):
            self._refs.append((str(reply.to_wire()["model_ref"]), request.runtime_config.get("operation", "")))
        if request.OPERATION == "admit":
            named = {
                name: value for name, value in request.to_wire().items() if name in ("model_ref", "shape", "width")
            }
            self._admitted[request.TYPE] = named
        self.tally[f"{request.TYPE} answered"] += 1

    def _leave(self) -> None:
        """Go away: politely, in the middle of a frame, or with a header no frame may have."""
        match self.maker.draw.randrange(4):
            case 0:
                self._ask(encode(Shutdown()))
            case 1:
                self._socket.sendall(b"\x05\x00\x00\x00abc")
                self._socket.shutdown(socket.SHUT_WR)
                self._take_fault(hung_up=True)
            case 2:
                self._socket.sendall(b"\xff\xff\xff\xff")
                self._take_fault()
            case _:
                self._socket.shutdown(socket.SHUT_WR)
                assert self._frame() is None

    def _send(self, payload: bytes, raw: bytes | None = None) -> None:
        frames = [payload] if raw is None else [payload, raw]
        for frame in frames:
            for chunk in self.maker.chunks(frame_header(len(frame), _MAX_FRAME) + frame, 2):
                self._socket.sendall(chunk)
        self.frames += len(frames)

    def _require_frame(self) -> bytes:
        frame = self._frame()
        assert frame is not None, "the worker ended without an answer"
        return frame

    def _frame(self) -> bytes | None:
        try:
            header = self._stream.read(HEADER_BYTES)
        except ConnectionResetError:
            # The end of a worker that left something of ours unread.
            return None
        return self._stream.read(int.from_bytes(header, "little")) if len(header) == HEADER_BYTES else None


_ADMISSIONS: Mapping[type[Message], type[Message]] = {EvictShape: AdmitShape, PackedEvict: PackedAdmit}
_ASKED: Sequence[type[Message]] = [kind for kind in REQUESTS.values() if kind is not Shutdown]


def fuzz_worker(folder: Path, frames: int, seed: int, *, requests: int = 60) -> Tally:
    """Send at least ``frames`` frames, in conversations drawn from ``seed``; what was reached.

    Raises ``AssertionError`` naming the seed.
    """
    maker, tally, sent = FrameMaker(random.Random(seed)), Tally(), 0  # noqa: S311
    load = load_request(folder)
    with _forking_worker(folder) as path:
        while sent < frames:
            conversation = Conversation(path, load, maker, tally)
            try:
                conversation.run(requests)
            except Exception as fault:
                said = (folder / "stderr").read_text()[-2000:]
                raise AssertionError(f"seed {seed}, after {sent} frames: {fault!r}; the worker said: {said}") from fault
            sent += conversation.frames
            tally["conversations"] += 1
        said = (folder / "stderr").read_text()
        assert ESCAPED not in said, f"seed {seed}: {said}"
    tally["frames"] = sent
    return tally


@contextmanager
def _forking_worker(folder: Path) -> Iterator[Path]:
    path = folder / "f.sock"
    command = [sys.executable, "-P", "-m", "synapse_host.testing.workers.forking_worker", str(path)]
    with (
        (folder / "stderr").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as program,
    ):
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n", (folder / "stderr").read_text()
            yield path
        finally:
            program.kill()
