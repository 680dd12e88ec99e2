"""What the client's methods need of a connection, and the rule for sending a request again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from synapse_host.client.exchange import Received
from synapse_host.client.faults import HostUnreachable
from synapse_host.errors import SynapseError

#: Seconds a host may take to answer the hello.
HELLO_DEADLINE_S = 5.0
#: Milliseconds that a request may be put off without a word: a pause lasts for hours, a cool-down for minutes.
LONGEST_WAIT_MS = 60_000
_READ_BYTES = 64 * 1024
_LARGE_READ_BYTES = 256 * 1024


class Transport(Protocol):
    """One connection. A blocking transport's methods never suspend."""

    async def submit(self, method: str, params: Mapping[str, Any], flow_id: str | None) -> int:
        """Send a request; its id."""

    async def result(self, number: int) -> Received:
        """Wait for an answer; raises what the host refused with, or ``ConnectionLost``."""

    async def answered(self, numbers: Collection[int]) -> int:
        """Wait until one of several requests is answered; its id, for ``result``. Raises ``ConnectionLost``."""

    def forget(self, number: int) -> None:
        """Give up an answer."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""


def may_retry(refusal: SynapseError) -> bool:
    """Whether sending the same request again is safe and may help."""
    return refusal.error_class == "transient" and refusal.safe_to_retry


def may_wait(refusal: SynapseError) -> bool:
    """Whether to send it again by oneself; whoever is to wait for longer than a minute is told so instead."""
    return may_retry(refusal) and (refusal.retry_after_ms or 0) <= LONGEST_WAIT_MS


def unlike(before: SynapseError | None, refusal: SynapseError) -> SynapseError | None:
    """What the try before ended with, where that says more than the last refusal: the cause of it, as a rule."""
    return before if before is not None and before.code != refusal.code else None


def read_size(wanted: int) -> int:
    """How many bytes to read at once when ``wanted`` more complete what is arriving."""
    return min(max(wanted, _READ_BYTES), _LARGE_READ_BYTES)


def unreachable(path: str, error: OSError) -> HostUnreachable:
    """The exception for a socket that does not answer."""
    return HostUnreachable(f"no host answers at {path} ({error}); start one with: synapse-host serve")
