"""Workers that break a rule while they answer a request. Stdlib only.

Each breaks it on requests of one wire type, EMBED_BATCH unless ``SYNAPSE_MISBEHAVE_ON`` names another, and is the stub
worker on all others.
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
from typing import Any

from synapse_host.testing.workers.misbehaving_start import hang
from synapse_host.testing.workers.stub_worker import StubWorker

_HEADER = struct.Struct("<I")
#: Requests whose progress is of phase ``control``.
_CONTROL_REQUESTS = frozenset({"ANE_ADMIT_SHAPE", "ANE_EVICT_SHAPE", "PACKED_ADMIT", "PACKED_EVICT", "UNLOAD"})


class Misbehaviour(StubWorker):
    """Overrides ``misbehave``."""

    target = os.environ.get("SYNAPSE_MISBEHAVE_ON", "EMBED_BATCH")

    def handle(self, request: dict[str, Any], raw: bytes) -> None:
        if request["type"] == self.target:
            self.misbehave(request, raw)
        else:
            super().handle(request, raw)

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        """Answer ``request``, or not, in the one way the class is named for."""
        raise NotImplementedError

    def behave(self, request: dict[str, Any], raw: bytes) -> None:
        """Answer ``request`` as the stub does."""
        super().handle(request, raw)

    def progress(self, request: dict[str, Any], completed: int, phase: str = "inference") -> None:
        """Send PROGRESS; of the phase that a request of this type may name, where it has but one."""
        phase = "control" if request["type"] in _CONTROL_REQUESTS else phase
        self.reply(request, type="PROGRESS", completed=completed, phase=phase)


class ExitsOnRequest(Misbehaviour):
    """Ends in the middle of a request, as an aborting engine does."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        sys.stdout.write("assertion n_tokens > 0 failed\n")
        sys.stdout.flush()
        sys.stderr.write("about to abort\n")
        sys.exit(5)


class Aborts(Misbehaviour):
    """Ends by a signal in the middle of a request."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        os.kill(os.getpid(), signal.SIGABRT)


class ExitsMidReply(Misbehaviour):
    """Sends the header of a reply and ends before the numbers; of a reply without numbers, half."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        if payload is None:
            control = json.dumps({"req_id": request["req_id"], **fields}).encode()
            self.socket.sendall(_HEADER.pack(len(control)) + control[: len(control) // 2])
        else:
            self.reply(request, **fields)
        sys.exit(6)


class PartialFrame(Misbehaviour):
    """Announces 100 bytes, sends 10 and ends."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.sendall(_HEADER.pack(100) + b"x" * 10)
        sys.exit(7)


class OversizedFrame(Misbehaviour):
    """Announces a frame of 4 GiB."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.sendall(_HEADER.pack(0xFFFFFFFF))
        hang()


class ClosesSocket(Misbehaviour):
    """Closes its connection and lives on."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.socket.close()
        hang()


class LeavesAHolder(Misbehaviour):
    """Ends in a request, while a process it set apart goes on holding its connection and its output."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        if os.fork() == 0:
            os.setsid()
            while self.socket.recv(1):
                pass
            os._exit(0)
        os._exit(8)


class Floods(Misbehaviour):
    """Prints without end, then reports progress without end."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        threading.Thread(target=self.print_without_end, daemon=True).start()
        for completed in itertools.count(1):
            self.progress(request, completed)

    def print_without_end(self) -> None:
        """Fill standard error."""
        while True:
            os.write(2, b"x" * 65536)


class StallingProgress(Misbehaviour):
    """Reports the same completed count twice."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        for completed in (2, 2):
            self.progress(request, completed)
        self.behave(request, raw)


class ForeignProgress(Misbehaviour):
    """Reports progress of a request that is not in flight."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.progress(request | {"req_id": "embed-0"}, 1)
        self.behave(request, raw)


class BackwardPhase(Misbehaviour):
    """Goes back from inference to setup, or names them where only control belongs."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        for completed, phase in enumerate(("inference", "setup"), start=1):
            self.reply(request, type="PROGRESS", completed=completed, phase=phase)
        self.behave(request, raw)


class ControlPhase(Misbehaviour):
    """Names the phase control, which only unloading, admission and eviction have."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.reply(request, type="PROGRESS", completed=1, phase="control")
        self.behave(request, raw)


class ProgressInside(Misbehaviour):
    """Puts progress between the header of a reply and its numbers, or behind a reply without numbers."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        self.reply(request, **fields)
        self.progress(request, 1)
        if payload is not None:
            self.send(payload)


class WrongRequestId(Misbehaviour):
    """Answers another request than the one asked."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.behave(request | {"req_id": "embed-0"}, raw)


class WrongReply(Misbehaviour):
    """Answers with PONG, and PING with UNLOADED."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        if request["type"] == "PING":
            self.reply(request, type="UNLOADED")
        else:
            self.reply(request, type="PONG", rss_mb=1, models_loaded=1)


class WrongRows(Misbehaviour):
    """Says one row more than was asked for: of vectors, of scores, or of the prompt's tokens."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        if fields["type"] == "SCORES":
            payload = (payload or b"") + b"\0" * 4
        counted = {name: fields[name] + 1 for name in ("n", "n_prompt") if name in fields}
        self.respond(request, fields | counted, payload)


class WrongDims(Misbehaviour):
    """Sends vectors of one component more than LOADED said, header and numbers agreeing."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        more = b"\0" * 4 * fields["n"]
        self.respond(request, fields | {"dims": fields["dims"] + 1}, (payload or b"") + more)


class ShortVectors(Misbehaviour):
    """Leaves the last of its numbers out."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        self.respond(request, fields, None if payload is None else payload[:-4])


class TooManyTokens(Misbehaviour):
    """Generates one token more than was asked for."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        ids = [7] * (request["max_tokens"] + 1)
        fields, payload = self.fields(request, raw)
        self.respond(request, fields | {"n_gen": len(ids), "generated_token_ids": ids}, payload)


class LosesTokens(Misbehaviour):
    """Counts tokens whose ids it leaves out."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        del fields["generated_token_ids"]
        self.respond(request, fields, payload)


class HalfCharacter(Misbehaviour):
    """Ends its text in the middle of a character."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        self.respond(request, fields | {"text": "\ud83d"}, payload)


class ExtraField(Misbehaviour):
    """Puts a field into its reply that no one knows."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        fields, payload = self.fields(request, raw)
        self.respond(request, fields | {"mood": "good"}, payload)


class RepliesTwice(Misbehaviour):
    """Sends every reply a second time."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.behave(request, raw)
        self.behave(request, raw)


class UnreadableRequest(Misbehaviour):
    """Claims it could not read the request: ERR without a request id."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.send(json.dumps({"type": "ERR", "code": "invalid_request", "msg": "no idea"}).encode())


class Refuses(Misbehaviour):
    """Refuses the first request and serves the rest."""

    refused = False

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        if self.refused:
            self.behave(request, raw)
            return
        self.refused = True
        self.reply(request, type="ERR", code="zero_output", msg='item "a": its vector is all zeros')


class Silence(Misbehaviour):
    """Takes a request and is never heard of again."""

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        hang()


class WaitsAtGate(Misbehaviour):
    """Holds the first request until the FIFO of ``SYNAPSE_GATE`` has been opened and closed again."""

    waited = False

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        if not self.waited:
            self.waited = True
            Path(os.environ["SYNAPSE_GATE"]).read_bytes()
        self.behave(request, raw)


class Grows(Misbehaviour):
    """Serves, and says of itself in each PONG that every request of its type has cost it 100 MiB.

    Where there is a ``SYNAPSE_GATE`` it holds its second request as ``wait_at_gate`` does its first.
    """

    asked = 0

    def misbehave(self, request: dict[str, Any], raw: bytes) -> None:
        self.asked += 1
        if self.asked == 2 and "SYNAPSE_GATE" in os.environ:
            Path(os.environ["SYNAPSE_GATE"]).read_bytes()
        self.behave(request, raw)

    def reply(self, request: dict[str, Any], **fields: Any) -> None:
        if fields["type"] == "PONG":
            fields["rss_mb"] += 100 * self.asked
        super().reply(request, **fields)


REQUEST_FAULTS: dict[str, type[StubWorker]] = {
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
    "control_phase": ControlPhase,
    "progress_inside": ProgressInside,
    "wrong_request_id": WrongRequestId,
    "wrong_reply": WrongReply,
    "wrong_rows": WrongRows,
    "wrong_dims": WrongDims,
    "short_vectors": ShortVectors,
    "too_many_tokens": TooManyTokens,
    "loses_tokens": LosesTokens,
    "half_character": HalfCharacter,
    "extra_field": ExtraField,
    "replies_twice": RepliesTwice,
    "unreadable_request": UnreadableRequest,
    "refuses": Refuses,
    "silence": Silence,
    "wait_at_gate": WaitsAtGate,
    "grows": Grows,
}
