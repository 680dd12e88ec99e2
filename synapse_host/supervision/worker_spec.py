"""What it takes to start one worker."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from synapse_host.backends.backend_settings import setting_arguments
from synapse_host.hookspecs import BackendSettings
from synapse_host.supervision.output_log import OutputLog
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.socket_stream import WorkerListener
from synapse_host.supervision.transport import Listen
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import ACCEPT_DEADLINE_S, DEFAULT_MAX_FRAME, HELLO_DEADLINE_S


@value_object
class WorkerSpec:
    """One worker to start.

    ``socket_path`` comes from ``socket_paths.worker_socket_path``. An expectation of None is not checked, and neither
    is one of an ``engine`` that is never bound. ``command`` replaces the program and its backend argument; ``--socket``
    and ``--nonce`` are appended to it all the same, and so are the operator's ``settings`` of the backend. ``output``
    gets the lines the worker prints. ``stdin`` is a descriptor the worker inherits as its standard input and keeps open
    as long as it lives, such as that of a lock. ``listen`` is the transport. Durations are seconds, ``max_frame`` is
    bytes.
    """

    backend: str
    worker_id: str
    socket_path: Path
    max_frame: int = DEFAULT_MAX_FRAME
    engine: str | None = None
    expected_manifest: str | None = None
    expected_kernel: str | None = None
    expected_flags: Mapping[str, str] = field(default_factory=dict)
    accept_deadline_s: float = ACCEPT_DEADLINE_S
    hello_deadline_s: float = HELLO_DEADLINE_S
    command: Sequence[str] | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)
    silence: SilenceWindows = field(default_factory=SilenceWindows)
    output: OutputLog | None = None
    settings: BackendSettings = field(default_factory=dict)
    stdin: int | None = None
    listen: Listen = WorkerListener

    def command_line(self, nonce: str) -> list[str]:
        """The whole command. ``-P`` keeps files of the working directory from being imported in a module's place."""
        program = self.command or (sys.executable, "-P", "-m", "synapse_host.worker", self.backend)
        arguments = ["--socket", str(self.socket_path), "--nonce", nonce]
        return [*program, *arguments, *setting_arguments(self.settings)]
