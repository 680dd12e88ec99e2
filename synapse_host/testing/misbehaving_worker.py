"""A worker that breaks exactly one rule of worker protocol v3, named in ``SYNAPSE_MISBEHAVIOUR``.

A real program, so that a test meets what a broken engine does to a host: closed sockets, cut frames, exit statuses,
signals. Until it reaches its one fault it is the stub worker. ``SYNAPSE_GATE`` names a FIFO for ``wait_at_gate``.
Stdlib only.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from synapse_host.testing.stub_worker import StubWorker, launch_arguments

#: Longer than any test waits; the host ends the program long before.
_FOR_EVER_S = 600.0
_HEADER = struct.Struct("<I")


def hang() -> NoReturn:
    """Do nothing until killed."""
    threading.Event().wait(_FOR_EVER_S)
    os._exit(99)


class WrongNonce(StubWorker):
    """Presents the nonce of another launch."""

    def hello(self) -> dict[str, Any]:
        return super().hello() | {"nonce": "0123456789abcdef"}


class WrongVersion(StubWorker):
    """Speaks version 2."""

    def hello(self) -> dict[str, Any]:
        return super().hello() | {"v": 2}


class FloatVersion(StubWorker):
    """Says 3.0 where the integer 3 belongs."""

    def hello(self) -> dict[str, Any]:
        return super().hello() | {"v": 3.0}


class OtherKernels(StubWorker):
    """Reports a package no one expects."""

    def hello(self) -> dict[str, Any]:
        return super().hello() | {"manifest_digest": "aa", "kernel_revision": "r9"}


class SmallFrames(StubWorker):
    """Takes frames of 4096 bytes at most."""

    def hello(self) -> dict[str, Any]:
        return super().hello() | {"max_frame": 4096}


class NotJson(StubWorker):
    """Opens with something that is no JSON."""

    def send_hello(self) -> None:
        self.send(b"\xff\xfe hello")


class EarlyFrame(StubWorker):
    """Does not wait for HELLO_ACK."""

    def send_hello(self) -> None:
        hello = json.dumps(self.hello()).encode()
        self.socket.sendall(_HEADER.pack(len(hello)) + hello + _HEADER.pack(2) + b"{}")


class LateHello(StubWorker):
    """Connects and says nothing."""

    def send_hello(self) -> None:
        hang()


class NeverConnects(StubWorker):
    """Starts and never connects."""

    def run(self) -> int:
        hang()


class ExitsBeforeConnect(StubWorker):
    """Ends at once, with a last word on standard error."""

    def run(self) -> int:
        sys.stderr.write("no such device\n")
        return 4


class ExitsBeforeHello(StubWorker):
    """Connects, then ends, with a last word on standard error."""

    def send_hello(self) -> None:
        sys.stderr.write("driver too old\n")
        sys.exit(9)


class ExitsOnRequest(StubWorker):
    """Ends in the middle of a request, as an aborting engine does."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        sys.stdout.write("assertion n_tokens > 0 failed\n")
        sys.stdout.flush()
        sys.stderr.write("about to abort\n")
        sys.exit(5)


class Aborts(StubWorker):
    """Ends by a signal in the middle of a request."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        os.kill(os.getpid(), signal.SIGABRT)


class ExitsMidReply(StubWorker):
    """Sends the header of VECTORS and ends before the vectors."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.reply(request, **self.vectors(request, raw)[0])
        sys.exit(6)


class PartialFrame(StubWorker):
    """Announces 100 bytes, sends 10 and ends."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.sendall(_HEADER.pack(100) + b"x" * 10)
        sys.exit(7)


class OversizedFrame(StubWorker):
    """Announces a frame of 4 GiB."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.sendall(_HEADER.pack(0xFFFFFFFF))
        hang()


class ClosesSocket(StubWorker):
    """Closes its connection and lives on."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.close()
        hang()


class LeavesAHolder(StubWorker):
    """Ends in a request, while a process it set apart goes on holding its connection and its output."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        if os.fork() == 0:
            os.setsid()
            while self.socket.recv(1):
                pass
            os._exit(0)
        os._exit(8)


class Floods(StubWorker):
    """Prints without end, then reports progress without end."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        threading.Thread(target=self.print_without_end, daemon=True).start()
        for completed in itertools.count(1):
            self.reply(request, type="PROGRESS", completed=completed, phase="inference")

    def print_without_end(self) -> None:
        """Fill standard error."""
        while True:
            os.write(2, b"x" * 65536)


class StallingProgress(StubWorker):
    """Reports the same completed count twice."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        for completed in (2, 2):
            self.reply(request, type="PROGRESS", completed=completed, phase="inference")
        super().embed(request, raw)


class ForeignProgress(StubWorker):
    """Reports progress of a request that is not in flight."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.reply({"req_id": "embed-0"}, type="PROGRESS", completed=1, phase="inference")
        super().embed(request, raw)


class BackwardPhase(StubWorker):
    """Goes back from inference to setup."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        for completed, phase in enumerate(("inference", "setup"), start=1):
            self.reply(request, type="PROGRESS", completed=completed, phase=phase)
        super().embed(request, raw)


class ProgressInside(StubWorker):
    """Puts progress between the header of VECTORS and the vectors."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        header, vectors = self.vectors(request, raw)
        self.reply(request, **header)
        self.reply(request, type="PROGRESS", completed=1, phase="inference")
        self.send(vectors)


class WrongRequestId(StubWorker):
    """Answers another request than the one asked."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        super().embed(request | {"req_id": "embed-0"}, raw)


class WrongReply(StubWorker):
    """Answers EMBED_BATCH with PONG."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.reply(request, type="PONG", rss_mb=1, models_loaded=1)


class WrongRows(StubWorker):
    """Says one row more than was asked for."""

    def vectors(self, request: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes]:
        header, vectors = super().vectors(request, raw)
        return header | {"n": header["n"] + 1}, vectors


class ShortVectors(StubWorker):
    """Leaves the last component of its vectors out."""

    def vectors(self, request: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes]:
        header, vectors = super().vectors(request, raw)
        return header, vectors[:-4]


class RepliesTwice(StubWorker):
    """Sends every reply a second time."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        super().embed(request, raw)
        super().embed(request, raw)


class UnreadableRequest(StubWorker):
    """Claims it could not read the request: ERR without a request id."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        self.send(json.dumps({"type": "ERR", "code": "invalid_request", "msg": "no idea"}).encode())


class Refuses(StubWorker):
    """Refuses the first EMBED_BATCH and serves the rest."""

    refused = False

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        if self.refused:
            super().embed(request, raw)
            return
        self.refused = True
        self.reply(request, type="ERR", code="zero_output", msg='item "a": its vector is all zeros')


class Silence(StubWorker):
    """Takes an EMBED_BATCH and is never heard of again."""

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        hang()


class WaitsAtGate(StubWorker):
    """Holds the first EMBED_BATCH until the FIFO of ``SYNAPSE_GATE`` has been opened and closed again."""

    waited = False

    def embed(self, request: dict[str, Any], raw: bytes) -> None:
        if not self.waited:
            self.waited = True
            Path(os.environ["SYNAPSE_GATE"]).read_bytes()
        super().embed(request, raw)


class IgnoresSigterm(StubWorker):
    """Neither SHUTDOWN nor SIGTERM ends it; SIGTERM is noted on standard error."""

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"SIGTERM ignored\n"))
        return super().run()

    def shut_down(self) -> bool:
        return False


class IgnoresShutdown(StubWorker):
    """SHUTDOWN does not end it; SIGTERM does."""

    def shut_down(self) -> bool:
        return False


MISBEHAVIOURS: dict[str, type[StubWorker]] = {
    "wrong_nonce": WrongNonce,
    "wrong_version": WrongVersion,
    "float_version": FloatVersion,
    "other_kernels": OtherKernels,
    "small_frames": SmallFrames,
    "not_json": NotJson,
    "early_frame": EarlyFrame,
    "late_hello": LateHello,
    "never_connects": NeverConnects,
    "exits_before_connect": ExitsBeforeConnect,
    "exits_before_hello": ExitsBeforeHello,
    "exits_on_request": ExitsOnRequest,
    "aborts": Aborts,
    "exits_mid_reply": ExitsMidReply,
    "partial_frame": PartialFrame,
    "oversized_frame": OversizedFrame,
    "closes_socket": ClosesSocket,
    "leaves_a_holder": LeavesAHolder,
    "floods": Floods,
    "stalling_progress": StallingProgress,
    "foreign_progress": ForeignProgress,
    "backward_phase": BackwardPhase,
    "progress_inside": ProgressInside,
    "wrong_request_id": WrongRequestId,
    "wrong_reply": WrongReply,
    "wrong_rows": WrongRows,
    "short_vectors": ShortVectors,
    "replies_twice": RepliesTwice,
    "unreadable_request": UnreadableRequest,
    "refuses": Refuses,
    "silence": Silence,
    "wait_at_gate": WaitsAtGate,
    "ignores_sigterm": IgnoresSigterm,
    "ignores_shutdown": IgnoresShutdown,
}

if __name__ == "__main__":
    misbehaviour = MISBEHAVIOURS[os.environ["SYNAPSE_MISBEHAVIOUR"]]
    sys.exit(misbehaviour(*launch_arguments(sys.argv)).run())
