"""A command's connection to the host.

The client is imported by the first command that connects: the daemon starts from the same script and needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from synapse_host.cli.output import failures_explained

if TYPE_CHECKING:
    from synapse_host.client.blocking_client import Client


@contextmanager
def connected(socket: Path | None) -> Iterator[Client]:
    """A client of the host at ``socket``, or of this user's; what goes wrong with it ends the command, explained."""
    from synapse_host.client.blocking_client import Client

    with failures_explained(), Client.connect(socket) as client:
        yield client
