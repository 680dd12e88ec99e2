"""A real host process in a home of its own, for end-to-end tests: started, asked, restarted, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from synapse_host.client.blocking_client import Client
from synapse_host.settings import resolve_paths

#: Seconds a host may take to listen on a busy machine, and to stop.
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
#: Seconds for a line of its log to come through the pipe.
SAYS_DEADLINE_S = 30.0
_READY = "listening on "


class RunningHost:
    """``synapse-host serve`` as a child process below ``home``; use as a context manager.

    ``environment`` is added to the child's own. Its standard error is kept in ``output``.
    """

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.output: list[str] = []
        own = {"SYNAPSE_HOME": str(home), "SYNAPSE_TEST_HARDWARE_DIR": str(home / "hardware")}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._printed = threading.Condition()
        #: Set when the host listens, or has ended without.
        self._ready = threading.Event()
        self._listening = False

    @property
    def socket(self) -> Path:
        """The consumer socket."""
        return resolve_paths({"SYNAPSE_HOME": str(self.home)}).host_socket

    @property
    def process(self) -> subprocess.Popen[str]:
        """The child; raises ``AssertionError`` when none runs."""
        assert self._process is not None, "the host is not running"
        return self._process

    def start(self) -> RunningHost:
        """Start and wait until it listens; raises ``AssertionError`` with its output when it does not."""
        self._ready.clear()
        self._listening = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "synapse_host", "serve"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        if not self._ready.wait(START_DEADLINE_S) or not self._listening:
            self.kill()
            raise AssertionError("".join(self.output))
        return self

    def stop(self) -> int:
        """SIGTERM, wait, and return the exit status."""
        process = self.process
        process.send_signal(signal.SIGTERM)
        return self._ended(process)

    def kill(self) -> None:
        """SIGKILL and wait."""
        process = self.process
        process.kill()
        self._ended(process)

    def says(self, text: str) -> bool:
        """Whether the host prints ``text``, in however many lines; what it has printed may be under way still."""
        with self._printed:
            return self._printed.wait_for(lambda: text in "".join(self.output), SAYS_DEADLINE_S)

    def client(self, **options: Any) -> Client:
        """A new blocking client."""
        return Client.connect(self.socket, **options)

    def __enter__(self) -> RunningHost:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill() if kind is not None else self.stop()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                with self._printed:
                    self.output.append(line)
                    self._printed.notify_all()
                if line.startswith(_READY):
                    self._listening = True
                    self._ready.set()
        self._ready.set()

    def _ended(self, process: subprocess.Popen[str]) -> int:
        status = process.wait(STOP_DEADLINE_S)
        if self._reader is not None:
            self._reader.join(STOP_DEADLINE_S)
        self._process = None
        return status


def python_path(folder: Path) -> dict[str, str]:
    """The environment that puts ``folder`` before whatever a child process would import from anyway."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def load_model(client: Client, directory: Path, *, certify: bool = True, **params: Any) -> dict[str, Any]:
    """Load the model in ``directory`` and, unless told not to, certify it; the load job's last status."""
    job = client.model_load(source="file", path=str(directory), **params)
    status = client.wait_for_load(job["job_id"])
    if certify:
        probed = client.wait_for_probe(client.probe_start([status["model_id"]])["job_id"])
        assert probed["lanes"][0]["certified"], probed["lanes"][0]["blocking_reason"]
    return status
