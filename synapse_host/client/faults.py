"""What can go wrong on the client's side of the socket; the host's own refusals are ``synapse_host.errors``."""

from __future__ import annotations


class HostUnreachable(ConnectionError):
    """No host answers at the socket, or it did not finish the hello."""


class ConnectionLost(ConnectionError):
    """The connection ended before the answer; whether the host did the work is unknown."""


class JobCancelled(Exception):
    """Somebody ended the job of this work; ``job_id`` says which. What it committed is kept."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id} was cancelled; what it computed is kept, and the same request_key goes on with the rest"
        )
        self.job_id = job_id


class ReplyMismatch(Exception):
    """An answer does not fit what was sent: other items, other lengths, another digest, an unknown error code."""
