"""A real host with the real model on a backend that records its batches."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.recording_backend import BACKEND, RecordedBatch, read_record, record_path
from synapse_host.client.blocking_client import Client
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.running_host import RunningHost, load_model

MODEL = "minilm"


class RecordedHost:
    """A host serving ``MODEL``, certified, with one client connected."""

    def __init__(self, host: RunningHost, client: Client, folder: Path) -> None:
        self.client = client
        self._host = host
        self._record = record_path(folder)
        self._read = 0

    def take_batches(self) -> list[RecordedBatch]:
        """The batches the worker was given since the last call."""
        with self._record.open("rb") as record:
            record.seek(self._read)
            data = record.read()
        self._read += len(data)
        return list(read_record(data))

    @property
    def socket(self) -> Path:
        """Where other clients connect."""
        return self._host.socket

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._host.process.pid

    def worker_pid(self) -> int:
        """Process id of the host's only child, its worker."""
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
        (found,) = [pid for pid, parent in pairs if parent == self.pid]
        return found


@contextmanager
def recorded_host() -> Iterator[RecordedHost]:
    """Start a host in a folder of its own, load and certify the model, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as root:
        folder = Path(root) / "plugin"
        folder.mkdir()
        source = Path(__file__).with_name("recording_backend.py").read_text("utf-8")
        module = install_backend(folder, BACKEND, source)
        search = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        home = Path(root) / "home"
        with RunningHost(home, {"PYTHONPATH": search}) as host, host.client() as client:
            load_model(client, minilm_directory(), engine=BACKEND, model_id=MODEL)
            recorded = RecordedHost(host, client, module.parent)
            recorded.take_batches()
            yield recorded
