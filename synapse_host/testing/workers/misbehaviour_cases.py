"""Every misbehaviour of a worker in every operation, and what must come of it: the expected half of the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Requests whose reply has a raw frame behind it.
_RAW_REPLIES = ("EMBED_BATCH", "RERANK", "RERANK_SEQUENCES", "SELF_CHECK")
_CONTROL = ("ANE_ADMIT_SHAPE", "ANE_EVICT_SHAPE", "PACKED_ADMIT", "PACKED_EVICT", "UNLOAD")
#: Requests of which a worker can be asked in the matrix.
REQUEST_OPERATIONS = ("LOAD", *_RAW_REPLIES, "GENERATE", *_CONTROL, "PING")
#: Beside the requests: starting a worker, stopping one, and unloading a lane with whatever worker it has.
START, STOP, LANE_UNLOAD = "start", "stop", "lane unload"
OPERATIONS = (START, *REQUEST_OPERATIONS, LANE_UNLOAD, STOP)


@dataclass(frozen=True, slots=True)
class Case:
    """One cell: a worker of ``kind`` does it in ``operation``.

    The caller gets an error of ``code`` with ``reason`` in its details and ``said`` in its message, no error where
    ``code`` is None; the lane has ``strikes`` then. ``late``: the operation itself succeeds and the request after it
    fails. ``lives``: the worker is none the worse for it.
    """

    operation: str
    kind: str
    code: str | None = "engine_crashed"
    reason: str | None = "protocol_fault"
    said: str = ""
    strikes: int = 1
    late: bool = False
    lives: bool = False

    @property
    def name(self) -> str:
        """What a test or a table calls it."""
        return f"{self.operation}-{self.kind}"


#: Misbehaviour in any request -> why the worker ends, and what its callers read.
_IN_ANY_REQUEST = {
    "exits_on_request": ("exited", "closed the connection"),
    "aborts": ("exited", "closed the connection"),
    "exits_mid_reply": ("exited", "closed the connection"),
    "partial_frame": ("exited", "10 bytes of an unfinished frame"),
    "closes_socket": ("exited", "closed the connection"),
    "oversized_frame": ("protocol_fault", "4294967295"),
    "silence": ("silence", "reported no completed work"),
    "stalling_progress": ("protocol_fault", "completed 2 after 2"),
    "foreign_progress": ("protocol_fault", "'embed-0'"),
    "wrong_request_id": ("protocol_fault", "'embed-0'"),
    "wrong_reply": ("protocol_fault", " answers "),
    "extra_field": ("protocol_fault", "'mood'"),
    "unreadable_request": ("protocol_fault", "no idea"),
}
#: Misbehaviour that takes a reply of a certain kind: the operations, the kind, what callers read.
_IN_SOME_REQUESTS = (
    (("EMBED_BATCH",), "wrong_rows", "3 rows for a batch of 2"),
    (("RERANK", "RERANK_SEQUENCES"), "wrong_rows", "12 bytes; 2 candidates take 8"),
    (("GENERATE",), "wrong_rows", "3 prompt tokens and 2 were sent"),
    (("EMBED_BATCH",), "wrong_dims", "VECTORS has 5 dims and LOADED said 4"),
    (("EMBED_BATCH",), "short_vectors", "has 28 bytes; 2 rows of 4 dims take 32"),
    (("RERANK", "RERANK_SEQUENCES"), "short_vectors", "4 bytes; 2 candidates take 8"),
    (("GENERATE",), "too_many_tokens", "4 generated tokens and at most 3"),
    (("GENERATE",), "loses_tokens", "3 generated tokens and gives 0 ids"),
    (("GENERATE",), "half_character", "surrogate"),
    (("SELF_CHECK",), "short_vectors", "its checks take"),
    (_RAW_REPLIES, "progress_inside", "the frame after "),
    (_CONTROL, "backward_phase", "names phase 'inference'"),
    (("LOAD", *_RAW_REPLIES, "GENERATE", "PING"), "backward_phase", "went back"),
    (("LOAD", *_RAW_REPLIES, "GENERATE", "PING"), "control_phase", "names phase 'control'"),
)
#: Misbehaviour before the first request -> code of the refused handshake or None, why it ended, strikes, what is said.
_AT_START = (
    ("wrong_nonce", "handshake_refused", 1, "nonce"),
    ("wrong_version", "handshake_refused", 1, "worker protocol 2"),
    ("float_version", "handshake_refused", 1, "worker protocol 3.0"),
    ("other_kernels", "handshake_refused", 0, "kernel_revision is 'r9'"),
    ("not_json", "handshake_refused", 1, "not JSON"),
    ("early_frame", "handshake_refused", 1, "6 bytes more before HELLO_ACK"),
    ("late_hello", "handshake_timeout", 0, "sent no HELLO within"),
    ("never_connects", "handshake_timeout", 0, "did not connect within"),
    ("exits_before_connect", "exited", 1, "exited before it connected"),
    ("exits_before_hello", "exited", 1, "ended before its handshake"),
)
_REFUSED_LOAD = "the worker refused with zero_output"


def cases() -> Iterator[Case]:
    """The whole matrix, operation by operation."""
    for kind, reason, strikes, said in _AT_START:
        yield Case(START, kind, reason=reason, said=said, strikes=strikes)
    for operation in REQUEST_OPERATIONS:
        yield from _of_request(operation)
    for kind in (*_IN_ANY_REQUEST, "refuses"):
        # An operator who unloads wants the model out of memory, and the end of its worker is just that.
        yield Case(LANE_UNLOAD, kind, code=None, reason=None, strikes=0)
    for kind in ("ignores_shutdown", "ignores_sigterm"):
        yield Case(STOP, kind, code=None, reason=None, strikes=0)


def _of_request(operation: str) -> Iterator[Case]:
    for kind, (reason, said) in _IN_ANY_REQUEST.items():
        yield Case(operation, kind, reason=reason, said=said)
    for operations, kind, said in _IN_SOME_REQUESTS:
        if operation in operations:
            yield Case(operation, kind, said=said)
    if operation not in _RAW_REPLIES:
        yield Case(operation, "progress_inside", late=True)
    yield Case(operation, "replies_twice", late=True)
    # A worker that refuses to load is of no use; one that refuses a request serves the next.
    lives = operation != "LOAD"
    yield Case(operation, "refuses", reason="zero_output", said=_REFUSED_LOAD, strikes=0, lives=lives)
