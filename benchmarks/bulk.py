"""Bulk embedding through the socket beside a bare loop over the same batches."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from benchmarks.bare_loop import BarePass, BareResult, make_bare_loop
from benchmarks.corpus import docstrings, salted
from benchmarks.machine import Machine
from benchmarks.recorded_host import MODEL, RecordedHost
from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.testing.models.minilm import minilm_directory

#: The issue's bars: the host's share of the bare loop, and texts per second on the reference box.
LEAST_RATIO = 0.95
LEAST_TEXTS_PER_S = 430.0
WARM_UP_PASSES = 2


def host_pass(host: RecordedHost, texts: list[str]) -> tuple[float, npt.NDArray[np.float32]]:
    """Seconds of one ``embed_many`` and its vectors."""
    started = time.perf_counter()
    reply = host.client.embed_many(MODEL, texts)
    return time.perf_counter() - started, reply.vectors


def measure(host: RecordedHost, machine: Machine, passes: int) -> Result:
    """Both sides in turn over freshly salted texts, the bare side over the batches the host has just made of them."""
    texts = docstrings()
    ours, bare, engine, batches = [], [], [], 0
    with SideProcess(make_bare_loop, minilm_directory()) as bare_loop:
        for number in range(-WARM_UP_PASSES, passes):
            fresh = salted(texts, f"bulk {number}")
            host.take_batches()
            seconds, vectors = host_pass(host, fresh)
            recorded = host.take_batches()
            result = bare_loop(BarePass(fresh, [batch.rows for batch in recorded]))
            assert isinstance(result, BareResult)
            if not np.array_equal(vectors, result.vectors):
                raise AssertionError("the host's vectors are not the bare engine's, bit for bit")
            if number >= 0:
                ours.append(seconds)
                bare.append(result.seconds)
                engine.append(sum(batch.seconds for batch in recorded))
                batches, tokens = len(recorded), result.tokens
    return _result(machine, len(texts), tokens, batches, Spread.of(ours), Spread.of(bare), _ratios(bare, ours), engine)


def _ratios(bare: list[float], ours: list[float]) -> Spread:
    return Spread.of(theirs / mine for theirs, mine in zip(bare, ours, strict=True))


def _result(
    machine: Machine,
    texts: int,
    tokens: int,
    batches: int,
    ours: Spread,
    bare: Spread,
    ratio: Spread,
    engine: list[float],
) -> Result:
    rows = [
        (name, side.shown(), f"{texts / side.median:.0f}", f"{tokens / side.median:.0f}")
        for name, side in (("host, through the socket", ours), ("bare loop, same batches", bare))
    ]
    rows.append(("ratio of the pairs", ratio.shown(3), "", ""))
    figures = {
        "texts": texts,
        "tokens": tokens,
        "batches": batches,
        "passes": len(ours.samples),
        "host_s": ours.median,
        "bare_s": bare.median,
        "host_engine_s": Spread.of(engine).median,
        "ratio": ratio.median,
        "ratio_low": ratio.samples[0],
        "ratio_high": ratio.samples[-1],
        "texts_per_s": texts / ours.median,
        "tokens_per_s": tokens / ours.median,
        "bare_tokens_per_s": tokens / bare.median,
        "bits_equal": True,
    }
    bars = (
        Bar("bulk through the socket, share of the bare loop", ratio.median, LEAST_RATIO, "at least"),
        Bar(
            "bulk through the socket on the reference box",
            texts / ours.median,
            LEAST_TEXTS_PER_S,
            "at least",
            " texts/s",
            held=machine.reference_class,
        ),
    )
    about = f"{texts} docstrings, {tokens} tokens, {batches} worker batches, tokenization included"
    return Result("bulk", about, ("side", "seconds", "texts/s", "tokens/s"), rows, figures, bars)
