"""What a vector costs on its way from host to client: raw float32 frames beside JSON numbers. No model runs."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson

from benchmarks import roundtrip
from benchmarks.result import Bar, Result, Spread
from synapse_host.client.blocking_client import Client
from synapse_host.framing import FrameDecoder, frame_header
from synapse_host.settings import load_settings

#: Bars of design section 11, gigabytes of float32 per second.
LEAST_RAW = {1: 0.5, 16: 1.5}
SIZES_MIB = (1, 4, 16)
ROUNDS = {"raw": 40, "json": 5}
_FRAME_LIMIT = 1 << 30

Fetch = Callable[[int], float]


def measure() -> Result:
    """Both forms in turn, by size."""
    with _host() as path, Client.connect(path) as raw, _JsonPeer(path) as json_peer:
        forms: dict[str, Fetch] = {"raw": lambda rows: _fetch_raw(raw, rows), "json": json_peer.fetch}
        found = {size: {name: _speed(fetch, size, ROUNDS[name]) for name, fetch in forms.items()} for size in SIZES_MIB}
    rows = [
        (
            f"{size} MiB",
            *(speed.shown(3) for speed in speeds.values()),
            f"{speeds['raw'].median / speeds['json'].median:.0f}",
        )
        for size, speeds in found.items()
    ]
    figures = {
        f"{name}_{size}_mib_gb_per_s": speed.median for size, both in found.items() for name, speed in both.items()
    }
    bars = [
        Bar(f"raw vectors of {size} MiB", found[size]["raw"].median, least, "at least", " GB/s")
        for size, least in LEAST_RAW.items()
    ]
    columns = ("reply", "raw, GB/s", "JSON, GB/s of the same vectors", "times")
    return Result("vectors", "host to client, decoded into an array", columns, rows, figures, bars)


def _speed(fetch: Fetch, mebibytes: int, rounds: int) -> Spread:
    size = mebibytes << 20
    rows = size // (roundtrip.DIMS * 4)
    fetch(rows)
    return Spread.of(size / fetch(rows) / 1e9 for _ in range(rounds))


def _fetch_raw(client: Client, rows: int) -> float:
    started = time.perf_counter()
    client.call("bench.nothing", {"text": "", "rows": rows})
    return time.perf_counter() - started


class _JsonPeer:
    """A consumer that never said hello, so its vectors come as numbers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._decoder = FrameDecoder(_FRAME_LIMIT)

    def fetch(self, rows: int) -> float:
        body = orjson.dumps({"id": 1, "method": "bench.nothing", "params": {"text": "", "rows": rows}})
        started = time.perf_counter()
        self._socket.sendall(frame_header(len(body), _FRAME_LIMIT) + body)
        while (frame := self._decoder.next_frame()) is None:
            self._decoder.feed(self._socket.recv(1 << 18))
        items = orjson.loads(frame)["result"]["vectors"]
        np.array([item["vector"] for item in items], np.float32)
        return time.perf_counter() - started

    def __enter__(self) -> _JsonPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


@contextmanager
def _host() -> Iterator[Path]:
    """The host of ``roundtrip``, whose one method answers as many rows as it is asked for."""
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as home:
        command = [sys.executable, roundtrip.__file__, "--host", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
            assert host.stdout is not None
            assert host.stdout.readline().strip() == "ready"
            try:
                yield load_settings({"SYNAPSE_HOME": home}).paths.host_socket
            finally:
                host.terminate()
