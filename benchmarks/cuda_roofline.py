"""What a forward on CUDA must do and the least time a card can do it in: pure arithmetic over the shapes of a config.

``python -m benchmarks.cuda_roofline`` prints the tables of ``docs/explanation/cuda-roofline.md``; a test holds the page
to them, and the launches of a block to those the engine makes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.random_checkpoints import SHAPES

#: Bytes of a number in an f16 lane.
HALF = 2
#: Queries of a block of attention and keys it takes at once, by width of a head (``kernels.cu``).
TILE_QUERIES = 64
TILE_KEYS = {32: 64, 64: 64, 128: 32}
Kind = Literal["product", "attention", "rows"]


@dataclass(frozen=True, slots=True)
class Card:
    """Published peaks: TFLOP/s of dense half products summed in float, GB/s of memory."""

    name: str
    tflops: float
    gbytes: float

    @property
    def ridge(self) -> float:
        """FLOPs for each byte below which memory is the bound."""
        return self.tflops * 1e3 / self.gbytes


#: NVIDIA's Ada architecture paper (GeForce RTX 4090) and the data sheets of H100 SXM and H200 SXM, without sparsity.
CARDS = (Card("RTX 4090", 165.2, 1008.0), Card("H100 SXM", 989.4, 3350.0), Card("H200 SXM", 989.4, 4800.0))
#: What we plan to reach of a peak: products by cuBLAS, our attention (nothing is copied ahead), passes over rows.
PLANNED: Mapping[Kind, float] = {"product": 0.70, "attention": 0.35, "rows": 0.75}
#: Seconds of the host for one launch by CuPy and for one synchronisation; assumed, no GPU has been asked.
LAUNCH_S, WAIT_S = 12e-6, 40e-6
#: The figures of text-embeddings-inference on an RTX 4090 that are the bar, in tokens a second.
BARS = {"gte": 231_750, "qwen3": 87_456}


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel of a block over all positions of a call: how often, FLOPs and bytes of all its launches together."""

    kernel: str
    kind: Kind
    launches: int
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes

    def seconds(self, card: Card, share: float = 1.0) -> float:
        """The least time on ``card`` at ``share`` of its peaks."""
        return max(self.flops / (card.tflops * 1e12), self.bytes / (card.gbytes * 1e9)) / share

    def bound(self, card: Card) -> str:
        """Which peak sets the least time."""
        return "arithmetic" if self.intensity > card.ridge else "memory"


@dataclass(frozen=True, slots=True)
class Call:
    """``rows`` rows of ``length`` tokens, padding included."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Positions computed."""
        return self.rows * self.length


def block_works(config: Mapping[str, Any], call: Call) -> list[Work]:
    """The kernels of one block in their order; of ModernBERT, attention is the mean of its two kinds of layer."""
    return list({"modernbert": _modernbert, "qwen3": _qwen3}[config["model_type"]](config, call))


def forward_seconds(config: Mapping[str, Any], call: Call, card: Card, *, planned: bool) -> float:
    """Time of all blocks: the least, or what is planned for."""
    works = block_works(config, call)
    shares = PLANNED if planned else dict.fromkeys(PLANNED, 1.0)
    return int(config["num_hidden_layers"]) * sum(work.seconds(card, shares[work.kind]) for work in works)


def host_seconds(config: Mapping[str, Any], call: Call, segments: int) -> float:
    """Time of the host for a call, which a device faster than it waits for."""
    launches = sum(work.launches for work in block_works(config, call)) * int(config["num_hidden_layers"])
    return launches * LAUNCH_S + segments * WAIT_S


def flops_of_a_token(config: Mapping[str, Any], length: int) -> float:
    """FLOPs of all blocks for one token of a row of ``length``."""
    call = Call(1, length)
    return int(config["num_hidden_layers"]) * sum(work.flops for work in block_works(config, call)) / length


def computed_keys(length: int, head: int, *, window: int | None = None, causal: bool = False) -> int:
    """Pairs of query and key of one head that the tiles of ``kernels.cu`` multiply for a row of ``length``."""
    size = TILE_KEYS[next(width for width in TILE_KEYS if head <= width)]
    pairs = 0
    for first in range(0, length, TILE_QUERIES):
        last = min(first + TILE_QUERIES, length) - 1
        low = 0 if window is None else max(0, first - window)
        high = min([length, *([last + 1] if causal else []), *([last + window + 1] if window is not None else [])])
        pairs += TILE_QUERIES * size * math.ceil((high - low) / size)
    return pairs


def _modernbert(config: Mapping[str, Any], call: Call) -> Iterator[Work]:
    c, wide, heads, t = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_attention_heads"],
        call.tokens,
    )
    every, layers, window = config["global_attn_every_n_layers"], config["num_hidden_layers"], config["local_attention"]
    everywhere = -(-layers // every) / layers
    pairs = everywhere * computed_keys(call.length, c // heads) + (1 - everywhere) * computed_keys(
        call.length, c // heads, window=window // 2
    )
    yield _product("Wqkv", t, c, 3 * c)
    yield _rows("rotated q, k", 2, 2 * 2 * t * c)
    yield _attention(call, heads, heads, c // heads, pairs)
    yield _product("attn.Wo", t, c, c)
    yield _rows("add, layer_norm", 1, 4 * t * c)
    yield _product("mlp.Wi", t, c, 2 * wide)
    yield _rows("gated_halves", 1, 3 * t * wide)
    yield _product("mlp.Wo", t, wide, c)
    yield _rows("sum, layer_norm", 1, 4 * t * c)


def _qwen3(config: Mapping[str, Any], call: Call) -> Iterator[Work]:
    c, wide, t, d = config["hidden_size"], config["intermediate_size"], call.tokens, config["head_dim"]
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    yield _product("q_proj", t, c, heads * d)
    yield _product("k_proj, v_proj", t, c, key_heads * d, 2)
    yield _rows("normed, rotated q, k", 2, 2 * t * (heads + key_heads) * d)
    yield _attention(call, heads, key_heads, d, computed_keys(call.length, d, causal=True))
    yield _product("o_proj", t, heads * d, c)
    yield _rows("add, rms_norm", 1, 4 * t * c)
    yield _product("gate_proj, up_proj", t, c, wide, 2)
    yield _rows("gated_pair", 1, 3 * t * wide)
    yield _product("down_proj", t, wide, c)
    yield _rows("sum, rms_norm", 1, 4 * t * c)


def _product(name: str, t: int, c: int, o: int, times: int = 1) -> Work:
    return Work(name, "product", times, times * 2.0 * t * c * o, times * HALF * float(t * c + c * o + t * o))


def _rows(name: str, launches: int, numbers: int) -> Work:
    """A pass over rows: a few FLOPs for each number, nothing beside its bytes."""
    return Work(name, "rows", launches, 4.0 * numbers, HALF * float(numbers))


def _attention(call: Call, heads: int, key_heads: int, d: int, pairs: float) -> Work:
    numbers = call.tokens * d * (2 * heads + 2 * key_heads)
    return Work("attention", "attention", 1, call.rows * heads * pairs * 4.0 * d, HALF * float(numbers))


#: What the page tells of: the padded call the ladder makes of rows of some 300 tokens.
CALL = Call(8, 320)
_NAMES = {"gte": "gte-modernbert-base", "qwen3": "Qwen3-Embedding-0.6B"}


def kernel_table(name: str) -> str:
    """Markdown: the kernels of one block on every card."""
    config = SHAPES[name].config
    lines = [
        "| kernel | launches | MFLOP | MB | FLOP/byte | " + " | ".join(f"{card.name}, µs" for card in CARDS) + " |",
        "|---|---|---|---|---|" + "---|" * len(CARDS),
    ]
    for work in block_works(config, CALL):
        cells = (f"{work.seconds(card) * 1e6:.1f} ({work.bound(card)})" for card in CARDS)
        lines.append(
            f"| {work.kernel} | {work.launches} | {work.flops / 1e6:,.0f} | {work.bytes / 1e6:.1f} | "
            f"{work.intensity:.0f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def forward_table() -> str:
    """Markdown: tokens a second by the roofline and by the plan, and the host's share."""
    lines = [
        "| model | card | roofline, tok/s | planned, tok/s | device, ms a call | host, ms a call | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, shape in SHAPES.items():
        host = host_seconds(shape.config, CALL, segments=7)
        for card in CARDS:
            least, device = (forward_seconds(shape.config, CALL, card, planned=planned) for planned in (False, True))
            bar = f"{BARS[name]:,}" if card is CARDS[0] else ""
            speeds = f"{CALL.tokens / least:,.0f} | {CALL.tokens / max(device, host):,.0f}"
            lines.append(f"| {_NAMES[name]} | {card.name} | {speeds} | {device * 1e3:.1f} | {host * 1e3:.1f} | {bar} |")
    return "\n".join(lines)


def bar_table() -> str:
    """Markdown: what the bar takes of the card."""
    card = CARDS[0]
    lines = ["| model | MFLOP a token | bar, tok/s | TFLOP/s at the bar | of the peak |", "|---|---|---|---|---|"]
    for name, shape in SHAPES.items():
        flops = flops_of_a_token(shape.config, CALL.length)
        reached = flops * BARS[name] / 1e12
        lines.append(
            f"| {_NAMES[name]} | {flops / 1e6:.0f} | {BARS[name]:,} | {reached:.0f} | {reached / card.tflops:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print every table."""
    for table in (bar_table(), kernel_table("gte"), kernel_table("qwen3"), forward_table()):
        sys.stdout.write(f"{table}\n\n")


if __name__ == "__main__":
    main()
