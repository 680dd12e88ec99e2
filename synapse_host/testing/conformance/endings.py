"""How a worker ends: when it is told, when its host is gone, and when the system says so. And that it is quiet."""

from __future__ import annotations

import sys
from pathlib import Path

from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.premises import MANY, PLAIN_LENGTH, a_row_is_served, requests_repeat
from synapse_host.testing.conformance.sessions import RawSession, embed_request
from synapse_host.worker_protocol.messages import Loaded, Shutdown, VectorsHeader

#: The host sends SIGKILL two seconds after SIGTERM; a worker that is still there after this many would have needed it.
TERMINATE_S = 5.0
#: Column of the inode in /proc/net/tcp and its siblings.
_INODE = 9


class Endings:
    """SHUTDOWN, the end of the connection, SIGTERM; descriptors 1 and 2; the network."""

    def test_shutdown_ends_the_worker_after_the_request_in_hand(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        raw = _loaded(conformance_bench)
        _send_batch(conformance_bench, raw, 16)
        raw.send(Shutdown())
        assert isinstance(raw.receive(), VectorsHeader), "the request before SHUTDOWN was not answered"
        assert raw.exit_status() == 0

    def test_an_idle_worker_ends_with_its_connection(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        raw = conformance_bench.driver.launch()
        raw.hang_up()
        assert raw.exit_status() == 0

    def test_a_busy_worker_ends_with_its_connection(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        raw = _loaded(conformance_bench)
        _send_batch(conformance_bench, raw, 8 * MANY)
        raw.hang_up()
        assert raw.exit_status() is not None, "the worker outlived its host"

    def test_sigterm_ends_the_worker(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        raw = _loaded(conformance_bench)
        raw.terminate()
        status = raw.exit_status(TERMINATE_S)
        assert status is not None, f"the worker still runs {TERMINATE_S:g} s after SIGTERM"

    def test_what_is_printed_never_reaches_the_connection(self, conformance_bench: Bench) -> None:
        """Descriptors 1 and 2 are written to around every request; a plugin must leave them where they lead."""
        conformance_bench.assume(requests_repeat)
        noisy = conformance_bench.start_served(noisy=True)
        rows = conformance_bench.rows_of([PLAIN_LENGTH])
        quiet = conformance_bench.shared().embed(rows)
        assert conformance_bench.promise.kept(quiet[0], noisy.embed(rows)[0])
        noisy.session.ping()
        noisy.session.stop()

    def test_no_connection_is_attempted(self, conformance_bench: Bench) -> None:
        """Neither by Python code, nor, where /proc tells, by a library that keeps its socket."""
        conformance_bench.assume(a_row_is_served)
        session = conformance_bench.shared().session
        assert session.network_attempts() == []
        if sys.platform == "linux":
            assert _network_sockets(session.pid) == [], "the worker holds sockets of a network"


def _loaded(bench: Bench) -> RawSession:
    raw = bench.driver.launch()
    raw.send(bench.model.load_request("load", bench.dtype))
    reply = raw.receive()
    assert isinstance(reply, Loaded), str(reply)
    raw.model_ref = reply.model_ref
    return raw


def _send_batch(bench: Bench, raw: RawSession, count: int) -> None:
    rows = bench.rows_of([min(128, bench.model.max_tokens)] * count)
    raw.send(*embed_request("embed", raw.model_ref, rows, "mean", True))


def _network_sockets(pid: int) -> list[str]:
    """Lines of the system's tables of TCP and UDP sockets that belong to ``pid``."""
    process = Path("/proc") / str(pid)
    links = [str(link.readlink()) for link in (process / "fd").iterdir() if link.is_symlink()]
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    tables = [process / "net" / name for name in ("tcp", "tcp6", "udp", "udp6")]
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return [line for line in lines if line.split()[_INODE] in own]
