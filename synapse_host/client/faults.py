"""What can go wrong on the client's side of the socket; the host's own refusals are ``synapse_host.errors``."""

from __future__ import annotations


class HostUnreachable(ConnectionError):
    """No host answers at the socket, or it did not finish the hello."""


class ConnectionLost(ConnectionError):
    """The connection ended before the answer; whether the host did the work is unknown."""


class ReplyMismatch(Exception):
    """An answer does not fit what was sent: other items, other lengths, another digest, an unknown error code."""
