"""What host and worker add to one short query: the client's wait minus the engine's own call.

The sides take turns in blocks of queries. Query by query, each would begin with the other's weights in the caches and
its own code nowhere; that is shown too, by the first query of every block.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from benchmarks.bare_loop import BareCall, make_bare_loop
from benchmarks.corpus import short_queries
from benchmarks.recorded_host import MODEL, RecordedHost
from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.testing.models.minilm import minilm_directory

#: The issue's bars, milliseconds over the bare engine call.
MOST_P50_MS = 0.4
MOST_P99_MS = 1.0
WARM_UP = 200
#: Queries of one turn; it divides ``WARM_UP``.
BLOCK = 20
P50, P99 = 0.5, 0.99


def measure(host: RecordedHost, queries: int) -> Result:
    """A block of queries through the socket, one at a time, then the same tokens to the bare engine, and again.

    The bar is held on quantile minus quantile of the two sides. The worker's own engine time of every query is known
    too, which gives what was added to each single one.
    """
    asked: list[float] = []
    alone: list[float] = []
    added: list[float] = []
    first: list[float] = []
    with SideProcess(make_bare_loop, minilm_directory()) as bare:
        for texts in _blocks(short_queries(WARM_UP + queries, "single")):
            waits = [_wait(host, text) for text in texts]
            batches = host.take_batches()
            calls = [bare(BareCall(batch.rows[0])) for batch in batches]
            over = [wait - batch.seconds * 1e3 for wait, batch in zip(waits, batches, strict=True)]
            asked += waits
            alone += [call * 1e3 for call in calls if isinstance(call, float)]
            added += over
            first.append(over[0])
    client, bare_calls = Spread.of(asked[WARM_UP:]), Spread.of(alone[WARM_UP:])
    return _result(client, bare_calls, Spread.of(added[WARM_UP:]), Spread.of(first[WARM_UP // BLOCK :]))


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while block := list(islice(remaining, BLOCK)):
        yield block


def _wait(host: RecordedHost, text: str) -> float:
    """Milliseconds until the client had its answer."""
    started = time.perf_counter()
    host.client.embed_query(MODEL, text)
    return (time.perf_counter() - started) * 1e3


def _result(client: Spread, bare: Spread, added: Spread, first: Spread) -> Result:
    over = {part: client.quantile(part) - bare.quantile(part) for part in (P50, P99)}
    rows = [
        (name, f"{spread.quantile(P50):.3f}", f"{spread.quantile(P99):.3f}")
        for name, spread in (
            ("client, through the socket", client),
            ("bare engine call", bare),
            ("added to each query, over its own engine call", added),
            ("the same, of the first query after the other side's turn", first),
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
        "first_added_p50_ms": first.quantile(P50),
        "first_added_p99_ms": first.quantile(P99),
    }
    bars = (
        Bar("single query over the bare engine call, p50", over[P50], MOST_P50_MS, "at most", " ms"),
        Bar("single query over the bare engine call, p99", over[P99], MOST_P99_MS, "at most", " ms"),
    )
    about = f"{len(client.samples)} queries of about ten tokens, one at a time"
    return Result("single", about, ("milliseconds", "p50", "p99"), rows, figures, bars)
