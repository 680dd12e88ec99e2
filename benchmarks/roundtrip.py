"""What the socket alone costs: round trips of a method that does nothing, and raw vectors of three sizes.

A host of one such method runs in its own process; no model, no worker. Prints a table on standard error and one JSON
line on standard output. Run: ``python benchmarks/roundtrip.py``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path

import anyio
from pydantic import BaseModel, ConfigDict

from synapse_host.client.async_client import AsyncClient
from synapse_host.client.blocking_client import Client
from synapse_host.operations.registry import Method, RawVectors, Registry, Reply, RequestContext
from synapse_host.server.listener import serve
from synapse_host.settings import Settings, load_settings

WARM_UP = 500
ROUNDS = 5000
DIMS = 16_384
TEXT = "a short question about nothing in particular"


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str
    rows: int = 0


async def _nothing(params: _Params, context: RequestContext) -> Reply:
    if not params.rows:
        return Reply({})
    items = [{"id": str(row)} for row in range(params.rows)]
    return Reply({"vectors": items}, RawVectors(params.rows, DIMS, _numbers(params.rows * DIMS * 4)))


@cache
def _numbers(size: int) -> bytes:
    return bytes(size)


async def _host(settings: Settings) -> None:
    stop = anyio.Event()
    registry = Registry([Method("bench.nothing", "query", _Params, _nothing)])
    async with anyio.create_task_group() as tasks:
        ready = partial(print, "ready", flush=True)
        tasks.start_soon(partial(serve, settings, registry, module_generation=1, on_ready=ready, stop=stop))
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                stop.set()
                break


def _percentiles(samples: list[float]) -> dict[str, float]:
    samples = sorted(samples)
    return {name: round(samples[int(len(samples) * at)] * 1e6, 1) for name, at in (("p50_us", 0.5), ("p99_us", 0.99))}


def _blocking(socket_path: Path) -> dict[str, float]:
    samples = []
    with Client.connect(socket_path) as client:
        for _ in range(WARM_UP + ROUNDS):
            start = time.perf_counter()
            client.call("bench.nothing", {"text": TEXT})
            samples.append(time.perf_counter() - start)
    return _percentiles(samples[WARM_UP:])


async def _asynchronous(socket_path: Path) -> dict[str, float]:
    samples = []
    async with await AsyncClient.connect(socket_path) as client:
        for _ in range(WARM_UP + ROUNDS):
            start = time.perf_counter()
            await client.call("bench.nothing", {"text": TEXT})
            samples.append(time.perf_counter() - start)
    return _percentiles(samples[WARM_UP:])


async def _pipelined(socket_path: Path) -> float:
    """Requests per second with sixteen in flight."""
    async with await AsyncClient.connect(socket_path) as client:

        async def caller() -> None:
            for _ in range(ROUNDS // 16):
                await client.call("bench.nothing", {"text": TEXT})

        start = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(caller)
        return round(ROUNDS // 16 * 16 / (time.perf_counter() - start))


def _throughput(socket_path: Path, size: int) -> float:
    """Gigabytes of raw vectors per second, median of single replies of ``size`` bytes."""
    rows = size // (DIMS * 4)
    samples = []
    with Client.connect(socket_path) as client:
        for _ in range(40):
            start = time.perf_counter()
            client.call("bench.nothing", {"text": TEXT, "rows": rows})
            samples.append(time.perf_counter() - start)
    return round(size / sorted(samples)[len(samples) // 2] / 1e9, 2)


def _measure(socket_path: Path) -> dict[str, object]:
    awaited: Callable[[Path], Awaitable[dict[str, float]]] = _asynchronous
    return {
        "blocking_client": _blocking(socket_path),
        "async_client": anyio.run(awaited, socket_path),
        "requests_per_second_16_in_flight": anyio.run(_pipelined, socket_path),
        "raw_gb_per_s": {f"{size >> 20}_mib": _throughput(socket_path, size) for size in (1 << 20, 4 << 20, 16 << 20)},
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        settings = load_settings({"SYNAPSE_HOME": home})
        command = [sys.executable, __file__, "--host", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
            assert host.stdout is not None
            assert host.stdout.readline().strip() == "ready"
            try:
                figures = _measure(settings.paths.host_socket)
            finally:
                host.terminate()
    for name, value in figures.items():
        print(f"{name:34} {value}", file=sys.stderr)
    print(json.dumps({"benchmark": "roundtrip", **figures}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        anyio.run(_host, load_settings({"SYNAPSE_HOME": sys.argv[2]}))
    else:
        main()
