"""The worker program with a witness: what a plugin reports and where it connects is written to a journal.

``python -m synapse_host.testing.conformance.observed_worker JOURNAL QUIET|NOISY BACKEND --socket PATH --nonce N`` runs
the very worker of ``python -m synapse_host.worker BACKEND ...``. Each report of progress becomes a line before the
worker judges it, so one that the worker would refuse or hold back is seen too. NOISY prints around every request on
descriptors 1 and 2, as a native library would.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synapse_host.hookspecs import Phase
from synapse_host.worker import __main__ as worker_program
from synapse_host.worker.hook_calls import HookCalls, Reply
from synapse_host.worker.progress_sender import ProgressSender
from synapse_host.worker_protocol.messages import Message

#: Audit events of a process that reaches out; their first argument is a socket, or a host name.
_NETWORK_EVENTS = frozenset(
    {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
)
_NOISE = b"a native library prints this\n"


class Journal:
    """Lines of JSON, each appended in one write, from this process and from what it forks."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, **fields: Any) -> None:
        """Append one line."""
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")


def witness_progress(journal: Journal) -> None:
    """Write every call of a plugin's ``progress``."""
    judge = ProgressSender.__call__

    def reported(sender: ProgressSender, completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None:
        journal.write(req_id=sender._req_id, completed=int(completed), phase=phase)
        judge(sender, completed, phase, token_ids)

    setattr(ProgressSender, "__call__", reported)  # noqa: B010


def witness_network(journal: Journal) -> None:
    """Write every attempt of Python code to reach a network; a Unix socket is none."""

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _NETWORK_EVENTS and getattr(arguments[0], "family", None) != socket.AF_UNIX:
            journal.write(network=f"{event} {arguments[1:] or arguments}")

    sys.addaudithook(audited)


def make_noise() -> None:
    """Print around every request, past Python's own streams."""
    answer = HookCalls.answer

    def answer_amid_noise(calls: HookCalls, request: Message, raw: bytes | None) -> Reply:
        os.write(1, _NOISE)
        os.write(2, _NOISE)
        reply = answer(calls, request, raw)
        os.write(1, _NOISE)
        return reply

    setattr(HookCalls, "answer", answer_amid_noise)  # noqa: B010


def main() -> int:
    """Take our two arguments away and be the worker; returns the exit status."""
    _, journal_path, noise = sys.argv[:3]
    del sys.argv[1:3]
    journal = Journal(Path(journal_path))
    witness_progress(journal)
    witness_network(journal)
    if noise == "NOISY":
        make_noise()
    return worker_program.main()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As the worker itself ends, and for its reason.
    os._exit(status)
