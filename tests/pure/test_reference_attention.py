"""Rotary positions, attention and the cache of the reference against formulas in float64, one number at a time."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from synapse_host.ops.reference_attention import ReferenceCache
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Batch

Array = npt.NDArray[np.float32]
B, S = 3, 5


class NoWeights:
    def tensor(self, name: str) -> Array:
        raise KeyError(name)


OPS = ReferenceOps(NoWeights(), max_tokens=600)


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch(*counts: int, length: int = S, start: int = 0) -> Batch:
    return Batch(np.zeros((len(counts), length), np.int32), np.array(counts, np.int32), start)


def close(found: Array, wanted: npt.ArrayLike, ulps: float = 1.0) -> None:
    expected = np.asarray(wanted, dtype=np.float64)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= ulps * 2.0**-24 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(("scaling", "start"), [(None, 0), (None, 9), (4.0, 530)])
def test_rope_turns_each_pair_by_the_angle_of_its_position(scaling: float | None, start: int) -> None:
    theta, d = 10_000.0, 6
    h = draw(23, B, 2, S, d)
    wanted = np.zeros(h.shape)
    for b, n, s, i in np.ndindex(B, 2, S, d // 2):
        angle = (start + s) / (scaling or 1.0) * theta ** (-2.0 * i / d)
        pair = complex(h[b, n, s, i], h[b, n, s, i + d // 2]) * complex(math.cos(angle), math.sin(angle))
        wanted[b, n, s, i], wanted[b, n, s, i + d // 2] = pair.real, pair.imag
    close(OPS.rope(h, OPS.rope_table(theta, d, scaling), batch(5, 5, 5, start=start)), wanted, 3)


def test_rope_refuses_positions_past_the_lane_and_odd_heads() -> None:
    table = OPS.rope_table(10_000.0, 6)
    with pytest.raises(ValueError, match="up to position 601"):
        OPS.rope(draw(23, 1, 1, S, 6), table, batch(5, start=596))
    with pytest.raises(ValueError, match="do not fit a table"):
        OPS.rope(draw(23, 1, 1, S, 8), table, batch(5))
    with pytest.raises(ValueError, match="rope_table: 5 features"):
        OPS.rope_table(10_000.0, 5)


ATTENTION_RULES = [
    {},
    {"causal": True},
    {"window": 1},
    {"window": 0},
    {"causal": True, "window": 2},
    {"start": 4, "causal": True},
    {"start": 4},
    {"start": 4, "causal": True, "window": 3},
    {"key_heads": 2},
    {"key_heads": 1, "causal": True},
]


def attended(
    q: Array, k: Array, v: Array, counts: tuple[int, ...], start: int, causal: bool, window: int | None
) -> npt.NDArray[np.float64]:
    """Softmax attention, one query and one key at a time; queries that see nothing stay NaN."""
    wanted = np.full(q.shape, np.nan)
    share = q.shape[1] // k.shape[1]
    for b, n, s in np.ndindex(q.shape[:3]):
        i = start + s
        seen = [
            j
            for j in range(k.shape[2])
            if j < start + counts[b] and (not causal or j <= i) and (window is None or abs(i - j) <= window)
        ]
        if seen:
            scores = [0.3 * math.fsum(map(float, q[b, n, s] * k[b, n // share, j].astype(np.float64))) for j in seen]
            weights = [math.exp(score - max(scores)) for score in scores]
            total = math.fsum(weights)
            wanted[b, n, s] = np.array(weights) / total @ v[b, n // share, seen].astype(np.float64)
    return wanted


@pytest.mark.parametrize("rule", ATTENTION_RULES, ids=str)
@pytest.mark.parametrize("length", [S, 1, 133])
def test_attention_sees_exactly_the_keys_of_the_rule(rule: dict[str, int], length: int) -> None:
    start, causal, window = rule.get("start", 0), bool(rule.get("causal")), rule.get("window")
    counts = (length, max(1, length - 2))
    key_heads = rule.get("key_heads", 4)
    q = draw(24, 2, 4, length, 3)
    k, v = draw(25, 2, key_heads, start + length, 3), draw(26, 2, key_heads, start + length, 3)
    given = batch(*counts, length=length, start=start)
    found = OPS.attention(q, k, v, given, scale=0.3, causal=causal, window=window)
    wanted = attended(q, k, v, counts, start, causal, window)
    assert np.isfinite(found).all()
    close(found, np.where(np.isnan(wanted), 0.0, wanted), 2)


def test_attention_refuses_shapes_that_do_not_go_together() -> None:
    q = draw(24, 2, 4, S, 3)
    for other in ((2, 3, S, 3), (1, 4, S, 3), (2, 4, S, 5)):
        with pytest.raises(ValueError, match="attention"):
            OPS.attention(q, draw(25, *other), draw(26, *other), batch(5, 5), scale=1.0)
    with pytest.raises(ValueError, match="window -1"):
        OPS.attention(q, q, q, batch(5, 5), scale=1.0, window=-1)


def test_attention_of_a_row_without_tokens_is_finite() -> None:
    q = draw(24, 2, 1, S, 3)
    assert np.isfinite(OPS.attention(q, q, q, batch(0, 5), scale=1.0)).all()


def test_attention_memory_grows_with_a_tile_and_not_with_the_square() -> None:
    length = 3000
    q = draw(24, 1, 2, length, 4)
    tracemalloc.start()
    try:
        OPS.attention(q, q, q, batch(length, length=length), scale=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < length * length * 4 / 2


def test_kv_append_keeps_what_is_cached_and_writes_into_nothing() -> None:
    cache = ReferenceCache()
    first, second, third = (draw(27 + i, 2, 1, n, 3) for i, n in enumerate((4, 1, 2)))
    keys, values = OPS.kv_append(cache, 0, first, first * 2, batch(4, 4, length=4))
    kept = keys.copy()
    grown, _ = OPS.kv_append(cache, 0, second, second, batch(1, 1, length=1, start=4))
    close(grown, np.concatenate([first, second], axis=2))
    back, doubled = OPS.kv_append(cache, 0, third, third, batch(2, 2, length=2, start=3))
    close(back, np.concatenate([first[:, :, :3], third], axis=2))
    close(doubled, np.concatenate([first[:, :, :3] * 2, third], axis=2))
    close(keys, kept)
    close(values, first * 2)
    with pytest.raises(ValueError, match="layer 1 holds 0 positions, the batch starts at 2"):
        OPS.kv_append(cache, 1, first, first, batch(4, 4, length=4, start=2))


def test_kv_append_without_a_cache_gives_the_same_back() -> None:
    k, v = draw(30, 2, 1, S, 3), draw(31, 2, 1, S, 3)
    keys, values = OPS.kv_append(None, 0, k, v, batch(5, 5))
    close(keys, k)
    close(values, v)
