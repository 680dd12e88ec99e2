"""Where the socket of one worker lies. Pure."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

#: Longest path in bytes that every system takes for a Unix socket: macOS has 104 with the closing NUL.
LONGEST_SOCKET_PATH = 103
#: What a worker id may consist of to be a file name as it stands; a model id may hold anything.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def worker_socket_path(runtime_dir: Path, worker_id: str) -> Path:
    """``<runtime_dir>/synapse/workers/<worker_id>.sock``, or a hashed short form where that cannot be a socket path.

    Raises:
        ValueError: even the short form is too long; the message names it and the remedy.

    """
    folder = runtime_dir / "synapse" / "workers"
    plain = folder / f"{worker_id}.sock"
    if _PLAIN_NAME.fullmatch(worker_id) and _length(plain) <= LONGEST_SOCKET_PATH:
        return plain
    short = folder / f"wk-{hashlib.sha256(worker_id.encode(errors='surrogatepass')).hexdigest()[:16]}.sock"
    if _length(short) > LONGEST_SOCKET_PATH:
        raise ValueError(
            f"worker socket path {str(short)!r} takes {_length(short)} bytes and the limit is {LONGEST_SOCKET_PATH}; "
            "set SYNAPSE_HOME to a shorter directory"
        )
    return short


def _length(path: Path) -> int:
    return len(str(path).encode(errors="surrogateescape"))
