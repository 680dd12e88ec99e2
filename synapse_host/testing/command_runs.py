"""The two command lines as child processes, for end-to-end tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Seconds one command may take on a busy machine.
COMMAND_DEADLINE_S = 100


def synapse_command(*arguments: str) -> list[str]:
    """The command line of ``synapse-host`` with ``arguments``."""
    return [str(Path(sys.executable).with_name("synapse-host")), *arguments]


def opctl_command(*arguments: str) -> list[str]:
    """The command line of ``synapse-opctl`` with ``arguments``."""
    return [str(Path(sys.executable).with_name("synapse-opctl")), *arguments]


def environment_of(home: Path | str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process with another ``SYNAPSE_HOME``, and output buffered as it is for a user."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "SYNAPSE_HOME": str(home), **(extra or {})}


def run_synapse(*arguments: str, home: Path | str, typed: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run ``synapse-host`` to its end with ``typed`` on its standard input."""
    return _run(synapse_command(*arguments), home, typed)


def run_opctl(*arguments: str, home: Path | str, typed: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run ``synapse-opctl`` to its end."""
    return _run(opctl_command(*arguments), home, typed)


def _run(command: list[str], home: Path | str, typed: bytes) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, input=typed, capture_output=True, env=environment_of(home), timeout=COMMAND_DEADLINE_S
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    )
