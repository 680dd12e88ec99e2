"""How fast a host downloads, hashing and writing what it gets, beside curl from the same server in turn.

The server sends from the page cache by ``sendfile``, in a process of its own, so that neither side waits for it. Both
write to the same file system; the host also hashes every byte and has it on the disk before it says so. The memory of
the host is looked at all the while.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import resident_mib
from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.client.blocking_client import Client
from synapse_host.testing.running_host import RunningHost

BYTES = 1_000_000_000
#: The issue's bars.
LEAST_RATIO, LEAST_MB_S, MOST_EXTRA_MIB = 0.6, 400.0, 60.0
_LOOK_S = 0.02
_BLOCK = 1 << 20


class Origin:
    """Sends one file to whoever asks, whatever the request says; ``address`` is where."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def __call__(self, job: None) -> str:
        """The address."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/model.safetensors"

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, Path(self._path).open("rb") as file:
                connection.recv(65_536)
                size = os.fstat(file.fileno()).st_size
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode())
                connection.sendfile(file)


class _Watch:
    """The largest resident memory of a process while it is entered."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most_mib = 0.0

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.most_mib = max(self.most_mib, resident_mib(self._pid))


def measure(passes: int, *, held: bool, size: int = BYTES, directory: Path | None = None) -> Result:
    """Download ``size`` bytes by both in turn, once before the passes that count."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-", dir=directory) as name:
        home = Path(name)
        digest = _write(home / "model.safetensors", size)
        with SideProcess(Origin, str(home / "model.safetensors")) as origin, _host(home / "home") as host:
            address = origin(None)
            idle_mib = resident_mib(host.process.pid)
            ours, theirs, most_mib = [], [], 0.0
            with host.client() as client, _Watch(host.process.pid) as watch:
                for number in range(passes + 1):
                    rates = _by_curl(address, home / "curl", size), _by_host(client, address, digest, size)
                    if number:
                        theirs.append(rates[0])
                        ours.append(rates[1])
                most_mib = watch.most_mib
    return _result(Spread.of(ours), Spread.of(theirs), idle_mib, most_mib, held)


def _result(ours: Spread, theirs: Spread, idle_mib: float, most_mib: float, held: bool) -> Result:
    ratio, extra = ours.median / theirs.median, most_mib - idle_mib
    rows = [
        ("synapse-host, hashed and on the disk", ours.shown(0), f"{ratio:.2f}"),
        ("curl", theirs.shown(0), ""),
        ("host's memory above idle, MiB", f"{extra:.1f}", ""),
    ]
    figures = {"host_mb_s": ours.median, "curl_mb_s": theirs.median, "ratio": ratio, "extra_mib": extra}
    bars = (
        Bar("download beside curl", ratio, LEAST_RATIO, "at least"),
        Bar("download", ours.median, LEAST_MB_S, "at least", " MB/s", held),
        Bar("memory of a download above idle", extra, MOST_EXTRA_MIB, "at most", " MiB"),
    )
    passes = len(ours.samples)
    return Result("download", f"{passes} passes in turn", ("MB/s", "median and range", "to curl"), rows, figures, bars)


def _by_curl(address: str, path: Path, size: int) -> float:
    started = time.perf_counter()
    subprocess.run(["curl", "-sS", "--noproxy", "*", "-o", str(path), address], check=True)
    seconds = time.perf_counter() - started
    assert path.stat().st_size == size
    path.unlink()
    return size / 1e6 / seconds


def _by_host(client: Client, address: str, digest: str, size: int) -> float:
    started = time.perf_counter()
    client.call("cache.pin", {"source_url": address, "expected_digest": digest})
    seconds = time.perf_counter() - started
    client.call("cache.pin", {"digest": digest, "pinned": False})
    for _ in range(2):
        client.call("cache.gc", {"digest": digest, "grace_ms": 0})
    return size / 1e6 / seconds


def _write(path: Path, size: int) -> str:
    """Bytes that no file system compresses away; their digest."""
    block, hashed = os.urandom(_BLOCK), hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, size, _BLOCK):
            part = block[: min(_BLOCK, size - start)]
            file.write(part)
            hashed.update(part)
    return hashed.hexdigest()


@contextmanager
def _host(home: Path) -> Iterator[RunningHost]:
    without = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "")
    with RunningHost(home, without) as running:
        yield running
