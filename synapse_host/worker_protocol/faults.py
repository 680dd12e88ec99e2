"""The two ways the other side of a worker connection can break the protocol; both end the connection."""

from __future__ import annotations


class ProtocolFault(Exception):
    """The peer sent something the protocol forbids; the message names the frame, the field and the value."""


class HandshakeRefused(ProtocolFault):
    """A HELLO the host does not accept.

    ``code`` is one of ``malformed_hello``, ``version_mismatch``, ``nonce_mismatch``, ``manifest_mismatch`` and
    ``kernel_revision_mismatch``; the last two give what was ``expected`` and what was claimed instead.
    """

    def __init__(self, code: str, message: str, *, expected: str | None = None, actual: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.expected = expected
        self.actual = actual
