"""A trap for network use: a ``sitecustomize`` that records and refuses it in every Python process that finds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synapse_host.testing.running_host import python_path

#: Runs in processes of which we know nothing else, before anything of theirs; an audit hook cannot be taken off again.
#: Abstract and file-system sockets of AF_UNIX are no network. A write of one short line in append mode is atomic.
_SITECUSTOMIZE = """
import json, os, socket, sys

_LOG = os.environ.get("SYNAPSE_TEST_NETWORK_LOG")
_WATCHED = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"}
_NAMES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}


def _note(event, what):
    line = json.dumps({"pid": os.getpid(), "argv": sys.orig_argv, "event": event, "what": repr(what)}) + "\\n"
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def _hook(event, args):
    if event in _NAMES:
        _note(event, args)
        raise PermissionError(f"network use is trapped: {event} {args!r}")
    if event in _WATCHED and args[0].family in (socket.AF_INET, socket.AF_INET6):
        _note(event, args[1:])
        raise PermissionError(f"network use is trapped: {event} {args[1:]!r}")


if _LOG:
    _note("started", None)
    sys.addaudithook(_hook)
"""


@dataclass(frozen=True, slots=True)
class NetworkTrap:
    """A folder with the trap and the record of what went into it."""

    folder: Path

    @classmethod
    def set_in(cls, folder: Path) -> NetworkTrap:
        """Write the trap into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        return cls(folder)

    @property
    def environment(self) -> dict[str, str]:
        """What a process and its children need in their environment to be trapped."""
        return {**python_path(self.folder), "SYNAPSE_TEST_NETWORK_LOG": str(self.folder / "record")}

    def record(self) -> list[dict[str, Any]]:
        """Everything noted so far, the start of each trapped process included."""
        path = self.folder / "record"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def started(self) -> list[list[str]]:
        """The command lines of the processes that were trapped."""
        return [note["argv"] for note in self.record() if note["event"] == "started"]

    def caught(self) -> list[dict[str, Any]]:
        """Every use of the network."""
        return [note for note in self.record() if note["event"] != "started"]
