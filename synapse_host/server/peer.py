"""Who is at the other end of a Unix socket, told by the kernel."""

from __future__ import annotations

import socket
import struct
import sys

#: struct ucred: pid, uid, gid.
_UCRED = struct.Struct("3i")
#: macOS sys/un.h: level SOL_LOCAL is 0, option LOCAL_PEERCRED is 1, answer struct xucred (version, uid, groups).
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_XUCRED_HEAD = struct.Struct("2I")
_XUCRED_BYTES = 76


def peer_uid(connection: socket.socket) -> int | None:
    """The user of the connected process, or None where the platform cannot say."""
    try:
        if sys.platform == "darwin":
            answer = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
            return int(_XUCRED_HEAD.unpack_from(answer)[1])
        if hasattr(socket, "SO_PEERCRED"):
            answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            return int(_UCRED.unpack(answer)[1])
    except OSError:
        return None
    return None
