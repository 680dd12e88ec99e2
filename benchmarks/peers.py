"""Bulk embedding through the socket beside sentence-transformers, at its default batch size and at its best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.bulk import host_pass
from benchmarks.corpus import docstrings, salted
from benchmarks.peer_library import BATCH_SIZES, DEFAULT_BATCH, PeerPass, PeerResult, make_peer
from benchmarks.recorded_host import RecordedHost
from benchmarks.result import Bar, Result, Spread
from benchmarks.side_process import SideProcess
from synapse_host.testing.models.minilm import minilm_directory

#: The issue's bars: how many times faster than the library at its default and at its best batch size.
LEAST_OVER_DEFAULT = 5.0
LEAST_OVER_BEST = 4.0
#: bf16 beside float32 (issue: fixtures against transformers).
LEAST_COSINE = 0.9999
#: Texts of the passes that find the best batch size; a whole pass of each would take minutes.
SEARCH_TEXTS = 256

Peer = SideProcess[PeerPass, PeerResult]


def measure(host: RecordedHost, passes: int) -> Result:
    """Find the library's best batch size, then take turns: host, library at its default, library at its best."""
    texts = docstrings()
    with SideProcess(make_peer, minilm_directory()) as peer:
        searched = _search(peer, texts)
        best = min(searched, key=searched.__getitem__)
        host_pass(host, salted(texts, "peers warm-up"))
        seconds: dict[str, list[float]] = {"host": [], "default": [], "best": []}
        cosines = []
        for number in range(passes):
            fresh = salted(texts, f"peers {number}")
            taken, ours = host_pass(host, fresh)
            default, chosen = (peer(PeerPass(fresh, size)) for size in (DEFAULT_BATCH, best))
            for side, value in zip(seconds, (taken, default.seconds, chosen.seconds), strict=True):
                seconds[side].append(value)
            cosines.append(least_cosine(ours, default.vectors))
    return _result(len(texts), best, searched, seconds, min(cosines))


def least_cosine(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """The smallest cosine between rows of the same text."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    products = np.einsum("ij,ij->i", a, b)
    return float((products / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def _search(peer: Peer, texts: list[str]) -> dict[int, float]:
    """Seconds of the searched texts at every batch size, after a warm-up of the same length."""
    peer(PeerPass(salted(texts[:SEARCH_TEXTS], "search warm-up"), DEFAULT_BATCH))
    return {size: peer(PeerPass(salted(texts[:SEARCH_TEXTS], f"search {size}"), size)).seconds for size in BATCH_SIZES}


def _result(
    texts: int, best: int, searched: dict[int, float], seconds: dict[str, list[float]], cosine: float
) -> Result:
    spreads = {side: Spread.of(samples) for side, samples in seconds.items()}
    ratios = {
        side: Spread.of(theirs / ours for theirs, ours in zip(seconds[side], seconds["host"], strict=True))
        for side in ("default", "best")
    }
    names = {
        "host": "host, through the socket",
        "default": f"sentence-transformers, batch {DEFAULT_BATCH} (its default)",
        "best": f"sentence-transformers, batch {best} (its best here)",
    }
    rows = [
        (
            name,
            spreads[side].shown(),
            f"{texts / spreads[side].median:.0f}",
            ratios[side].shown(2) if side in ratios else "",
        )
        for side, name in names.items()
    ]
    rows += [(f"  found at batch {size}", "", f"{SEARCH_TEXTS / taken:.0f}", "") for size, taken in searched.items()]
    figures = {
        "texts": texts,
        "host_texts_per_s": texts / spreads["host"].median,
        "default_texts_per_s": texts / spreads["default"].median,
        "best_texts_per_s": texts / spreads["best"].median,
        "best_batch": best,
        "over_default": ratios["default"].median,
        "over_best": ratios["best"].median,
        "min_cosine": cosine,
    }
    bars = (
        Bar(
            "times sentence-transformers at its default batch", ratios["default"].median, LEAST_OVER_DEFAULT, "at least"
        ),
        Bar("times sentence-transformers at its best batch", ratios["best"].median, LEAST_OVER_BEST, "at least"),
        Bar("smallest cosine to sentence-transformers", cosine, LEAST_COSINE, "at least"),
    )
    about = f"{texts} docstrings, smallest cosine between the sides {cosine:.6f}"
    return Result("peers", about, ("side", "seconds", "texts/s", "host is faster by"), rows, figures, bars)
