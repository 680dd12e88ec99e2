"""Workers that break a rule before their first request or at their end. Stdlib only."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
from typing import Any, NoReturn

from synapse_host.testing.workers.stub_worker import StubWorker

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


START_FAULTS: dict[str, type[StubWorker]] = {
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
    "ignores_sigterm": IgnoresSigterm,
    "ignores_shutdown": IgnoresShutdown,
}
