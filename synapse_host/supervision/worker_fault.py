"""Why a worker ended, and the ``engine_crashed`` that everyone waiting for it gets. Pure."""

from __future__ import annotations

import signal
from typing import Any, Literal

from synapse_host.errors import EngineCrashed

#: ``spawn_failed``, ``handshake_timeout`` and ``handshake_refused`` happen before a worker serves; ``exited``,
#: ``protocol_fault`` and ``silence`` are its own doing; ``stopped`` is ours; ``other_model`` tells one of the models a
#: worker serves that it ended over the request of another.
FaultReason = Literal[
    "spawn_failed",
    "handshake_timeout",
    "handshake_refused",
    "exited",
    "protocol_fault",
    "silence",
    "stopped",
    "other_model",
]


class WorkerFault(Exception):
    """The end of one worker; a worker has at most one, however many callers it fails.

    ``handshake_code`` is the code of the refused HELLO, for ``handshake_refused`` only; ``mismatch`` the value that was
    expected and the one claimed, where the worker is of another package or has other kernels.
    """

    def __init__(
        self,
        reason: FaultReason,
        message: str,
        handshake_code: str | None = None,
        mismatch: tuple[str, str | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason: FaultReason = reason
        self.message = message
        self.handshake_code = handshake_code
        self.mismatch = mismatch


def crash_error(fault: WorkerFault, *, worker_id: str, returncode: int | None, output_tail: str) -> EngineCrashed:
    """The error for ``fault``; ``returncode`` is the process's, negative for a signal, None when it was never seen."""
    details: dict[str, Any] = {
        "worker_id": worker_id,
        "reason": fault.reason,
        "exit": describe_exit(returncode),
        "output_tail": output_tail,
    }
    if fault.handshake_code is not None:
        details["handshake_code"] = fault.handshake_code
    message = f"worker {worker_id!r}: {fault.message}"
    if fault.mismatch is None:
        return EngineCrashed(message, details=details)
    # The next worker would be of the same package: no retry helps before somebody acts.
    expected, actual = fault.mismatch
    return EngineCrashed(message, details={**details, "expected": expected, "actual": actual}, error_class="permanent")


def describe_exit(returncode: int | None) -> str:
    """``status 3``, ``signal SIGKILL`` or ``unknown``."""
    if returncode is None:
        return "unknown"
    if returncode >= 0:
        return f"status {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"
