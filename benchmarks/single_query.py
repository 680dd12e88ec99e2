"""What host and worker add to one short query: the client's wait minus the engine's own call."""

from __future__ import annotations

import time

from benchmarks.bare_loop import BareCall, make_bare_loop
from benchmarks.corpus import short_queries
from benchmarks.recorded_host import MODEL, RecordedHost
from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.testing.minilm import minilm_directory

#: The issue's bars, milliseconds over the bare engine call.
MOST_P50_MS = 0.4
MOST_P99_MS = 1.0
WARM_UP = 200
P50, P99 = 0.5, 0.99


def measure(host: RecordedHost, queries: int) -> Result:
    """One query through the socket, then the same tokens to the bare engine, and again.

    The bar is held on quantile minus quantile of the two sides. The worker's own engine time of every query is known
    too, which gives what was added to each single one.
    """
    asked, calls = [], []
    with SideProcess(make_bare_loop, minilm_directory()) as bare:
        for text in short_queries(WARM_UP + queries, "single"):
            started = time.perf_counter()
            host.client.embed_query(MODEL, text)
            asked.append((time.perf_counter() - started) * 1e3)
            (batch,) = host.take_batches()
            call = bare(BareCall(batch.rows[0]))
            assert isinstance(call, float)
            calls.append((call * 1e3, batch.seconds * 1e3))
    client = asked[WARM_UP:]
    alone = [call for call, _ in calls[WARM_UP:]]
    added = [taken - engine for taken, (_, engine) in zip(client, calls[WARM_UP:], strict=True)]
    return _result(Spread.of(client), Spread.of(alone), Spread.of(added))


def _result(client: Spread, bare: Spread, added: Spread) -> Result:
    over = {part: client.quantile(part) - bare.quantile(part) for part in (P50, P99)}
    rows = [
        (name, f"{spread.quantile(P50):.3f}", f"{spread.quantile(P99):.3f}")
        for name, spread in (
            ("client, through the socket", client),
            ("bare engine call", bare),
            ("added to each query, over its own engine call", added),
        )
    ]
    rows.insert(2, ("difference", f"{over[P50]:.3f}", f"{over[P99]:.3f}"))
    figures = {
        "queries": len(client.samples),
        "client_p50_ms": client.quantile(P50),
        "client_p99_ms": client.quantile(P99),
        "bare_p50_ms": bare.quantile(P50),
        "bare_p99_ms": bare.quantile(P99),
        "over_p50_ms": over[P50],
        "over_p99_ms": over[P99],
        "added_p50_ms": added.quantile(P50),
        "added_p99_ms": added.quantile(P99),
    }
    bars = (
        Bar("single query over the bare engine call, p50", over[P50], MOST_P50_MS, "at most", " ms"),
        Bar("single query over the bare engine call, p99", over[P99], MOST_P99_MS, "at most", " ms"),
    )
    about = f"{len(client.samples)} queries of about ten tokens, one at a time"
    return Result("single", about, ("milliseconds", "p50", "p99"), rows, figures, bars)
