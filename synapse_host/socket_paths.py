"""Where every Unix socket of the host lies; the one place that knows how long a socket's path may be. Pure.

A path that would not fit takes a hashed name in the same folder, and a folder that is itself too deep is replaced by
one below /tmp that carries the user's number. Whoever binds there makes sure the folder is private.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

#: Longest path in bytes that every system takes for a Unix socket: macOS has 104 with the closing NUL.
MAX_SOCKET_PATH_BYTES = 103
#: What a name may consist of to be a file name as it stands; a model id may hold anything.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Not the TMPDIR of a process: host and client must agree on it.
_SHORT_ROOT = Path("/tmp")  # noqa: S108


def host_socket_path(runtime_dir: Path) -> Path:
    """The consumer socket of a runtime directory: ``synapse/host.sock`` below it where that fits."""
    path = runtime_dir / "synapse" / "host.sock"
    return path if _fits(path) else _short_folder() / f"{_digest(path)}.sock"


def worker_socket_path(runtime_dir: Path, worker_id: str) -> Path:
    """The socket of one worker: ``synapse/workers/<worker_id>.sock`` below the runtime directory where that fits."""
    folder = worker_socket_folder(runtime_dir)
    plain = folder / f"{worker_id}.sock"
    if folder != _short_folder() and _PLAIN_NAME.fullmatch(worker_id) and _fits(plain):
        return plain
    # The folder below /tmp is shared by all runtime directories of the user, so theirs goes into the digest.
    return folder / f"wk-{_digest(f'{runtime_dir}/{worker_id}')}.sock"


def worker_socket_folder(runtime_dir: Path) -> Path:
    """The folder of the workers' sockets: ``synapse/workers`` below the runtime directory where a name fits in it."""
    folder = runtime_dir / "synapse" / "workers"
    return folder if _fits(folder / f"wk-{_digest('')}.sock") else _short_folder()


def _short_folder() -> Path:
    return _SHORT_ROOT / f"synapse-{os.getuid()}"


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _digest(name: Path | str) -> str:
    return hashlib.sha256(str(name).encode(errors="surrogatepass")).hexdigest()[:16]
