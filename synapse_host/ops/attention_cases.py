"""Cases of the operations contract on Heads: cutting and joining, rotary positions, attention and the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from synapse_host.ops.case_bench import Float32, Measured, OpBench, OpCase
from synapse_host.ops.row_cases import peak

B, N, D = 2, 3, 6
THETA = 10_000.0


def _heads(b: OpBench) -> list[Measured]:
    return [Measured(b.read(b.ops.heads(b.rows(b.draw(B, 5, N * D)), N), "heads"))]


def _merge_heads(b: OpBench) -> list[Measured]:
    return [Measured(b.read(b.ops.merge_heads(b.heads(b.draw(B, N, 5, D)))))]


def _rotated(theta: float, scaling: float | None, length: int, start: int) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        h = b.draw(B, N, length, D)
        table = b.ops.rope_table(theta, D, scaling)
        y = b.ops.rope(b.heads(h), table, b.batch([length] * B, length, start=start))
        return [Measured(b.read(y, "heads"), magnitude=2.0 * peak(h))]

    return run


@dataclass(frozen=True, slots=True)
class _Attention:
    """Sizes and rules of one attention case; keys are ``start`` longer than the queries."""

    length: int
    counts: Sequence[int]
    causal: bool = False
    window: int | None = None
    start: int = 0
    heads: int = N
    key_heads: int = N

    def __call__(self, b: OpBench) -> list[Measured]:
        rows, total = len(self.counts), self.start + self.length
        q = b.draw(rows, self.heads, self.length, D)
        k, v = b.draw(rows, self.key_heads, total, D), b.draw(rows, self.key_heads, total, D)
        batch = b.batch(self.counts, self.length, start=self.start)
        scale = 1.0 / math.sqrt(D)
        y = b.ops.attention(
            b.heads(q), b.heads(k), b.heads(v), batch, scale=scale, causal=self.causal, window=self.window
        )
        valid = np.arange(self.length) < np.array(self.counts)[:, None]
        return [Measured(b.read(y, "heads"), self._magnitude(q, k, v, scale), valid=valid[:, None, :, None])]

    def _magnitude(self, q: Float32, k: Float32, v: Float32, scale: float) -> float:
        """A relative error of the scores moves the weights by as much as the scores are large."""
        score = scale * math.sqrt(D) * float(np.std(q) * np.std(k))
        return peak(v) * (1.0 + score)


def _kv_append(b: OpBench) -> list[Measured]:
    cache = b.new_cache()
    measured: list[Measured] = []
    for layer, length, start in ((0, 5, 0), (1, 5, 0), (0, 1, 5), (1, 1, 5), (0, 2, 4)):
        k, v = b.draw(B, N, length, D), b.draw(B, N, length, D)
        batch = b.batch([length] * B, length, start)
        keys, values = b.ops.kv_append(cache, layer, b.heads(k), b.heads(v), batch)
        measured.append(Measured(b.read(keys, "heads"), what=f"the keys of layer {layer} after {start}"))
        measured.append(Measured(b.read(values, "heads"), what=f"the values of layer {layer} after {start}"))
    return measured


def _kv_none(b: OpBench) -> list[Measured]:
    k, v = b.draw(B, N, 5, D), b.draw(B, N, 5, D)
    keys, values = b.ops.kv_append(None, 0, b.heads(k), b.heads(v), b.batch([5] * B, 5))
    return [Measured(b.read(keys, "heads"), what="keys"), Measured(b.read(values, "heads"), what="values")]


_ATTENTION: dict[str, _Attention] = {
    "every token valid": _Attention(7, (7, 7)),
    "ragged rows": _Attention(7, (7, 1, 4)),
    "one token": _Attention(1, (1,)),
    "longer than a tile, ragged": _Attention(131, (131, 129, 2)),
    "causal, ragged": _Attention(9, (9, 5), causal=True),
    "window of 2": _Attention(11, (11, 6), window=2),
    "window of 0": _Attention(5, (5, 3), window=0),
    "causal window over several tiles": _Attention(300, (300, 140), causal=True, window=20),
    "window over several tiles": _Attention(300, (300, 140), window=33),
    "two query heads to a key head": _Attention(7, (7, 5), heads=4, key_heads=2),
    "one key head for all, causal": _Attention(7, (7, 5), heads=3, key_heads=1, causal=True),
    "causal after 6 cached tokens": _Attention(3, (3, 2), causal=True, start=6),
    "one token after 20, window of 4": _Attention(1, (1, 1), causal=True, window=4, start=20),
}

ATTENTION_CASES: tuple[OpCase, ...] = (
    OpCase("heads", "three heads of six", _heads),
    OpCase("merge_heads", "three heads of six", _merge_heads),
    OpCase("rope_table", "far positions", _rotated(THETA, None, 300, 90)),
    OpCase("rope_table", "another base, positions divided by 4", _rotated(160_000.0, 4.0, 300, 90)),
    OpCase("rope", "from the first position", _rotated(THETA, None, 7, 0)),
    OpCase("rope", "after 13 cached tokens", _rotated(THETA, None, 5, 13)),
    *(OpCase("attention", label, case) for label, case in _ATTENTION.items()),
    OpCase("kv_append", "two layers, one token more each, then back to 4", _kv_append),
    OpCase("kv_append", "no cache gives the same back", _kv_none),
)
