"""The kernels of one block at a model's shapes: time, and what of the card's peaks it comes to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from synapse_owned_cuda.cuda_ops import CudaOps
from synapse_owned_cuda.device import Device

from benchmarks.cuda_roofline import CARDS, Call, Card, Work, block_works
from synapse_host.ops.tensor_ops import Batch

#: Long enough that the device takes longer than the host for every kernel.
CALL = Call(64, 320)
TINY_CALL = Call(2, 24)
_SECONDS, _MOST = 0.3, 200


def known_card(name: str) -> Card | None:
    """The card of the roofline whose name is part of ``name``, so that shares of its peaks can be told."""
    return next((card for card in CARDS if card.name.split()[-1 if "RTX" in card.name else 0] in name), None)


def kernels(device: Device, config: Mapping[str, Any], call: Call, card: Card | None) -> Iterator[dict[str, Any]]:
    """A row for each kernel of a block, in the order of ``block_works``."""
    device.limit_memory(device.free_memory())
    runs = _Block(device, config, call).runs()
    for work in block_works(config, call):
        try:
            yield _row(work, seconds_of(device, runs[work.kernel]), card)
        except Exception as failure:  # the next kernel may still run
            yield {"kernel": work.kernel, "error": repr(failure)}


def seconds_of(device: Device, run: Callable[[], Any]) -> float:
    """Seconds of one run, over as many as fit a fraction of a second, after one that warms up."""
    run()
    device.wait()
    began = time.perf_counter()
    run()
    device.wait()
    times = max(1, min(_MOST, int(_SECONDS / max(time.perf_counter() - began, 1e-6))))
    began = time.perf_counter()
    for _ in range(times):
        run()
    device.wait()
    return (time.perf_counter() - began) / times


def _row(work: Work, seconds: float, card: Card | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kernel": work.kernel,
        "launches": work.launches,
        "us": seconds * 1e6,
        "TFLOP/s": work.flops / seconds / 1e12,
        "GB/s": work.bytes / seconds / 1e9,
    }
    if card is not None:
        row |= {"bound": work.bound(card), "of the peak": f"{work.seconds(card) / seconds:.1%}"}
    return row


class _Block:
    """Arrays of one block's shapes, and what each kernel of ``block_works`` is in operations."""

    def __init__(self, device: Device, config: Mapping[str, Any], call: Call) -> None:
        self._device, self._config, self._call = device, config, call
        self._rng = np.random.default_rng(3)
        self._ops = CudaOps(_NoWeights(), device, max_tokens=call.length)
        counts = device.to_device(np.full(call.rows, call.length, np.int32))
        self._batch = Batch(device.to_device(np.zeros((call.rows, call.length), np.int32)), counts)

    def runs(self) -> dict[str, Callable[[], Any]]:
        """By the names of ``block_works``."""
        return {"modernbert": self._modernbert, "qwen3": self._qwen3}[self._config["model_type"]]()

    def _modernbert(self) -> dict[str, Callable[[], Any]]:
        ops, config, batch = self._ops, self._config, self._batch
        c, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        d, every, layers = c // heads, config["global_attn_every_n_layers"], config["num_hidden_layers"]
        x, r, joined, inner, both = (self._rows(size) for size in (c, c, 3 * c, wide, 2 * wide))
        w, table = self._norm(c), ops.rope_table(1e4, d)
        q, k, v = (ops.heads(part, heads) for part in ops.split(joined, (c, c, c)))
        scale, turn = 1 / math.sqrt(d), _Turn(-(-layers // every), layers)

        def attention() -> Any:
            window = None if turn.next_is_first() else config["local_attention"] // 2
            return ops.attention(q, k, v, batch, scale=scale, window=window)

        return {
            "Wqkv": self._linear(x, c, 3 * c),
            "rotated q, k": lambda: (ops.rope(q, table, batch), ops.rope(k, table, batch)),
            "attention": attention,
            "attn.Wo": self._linear(x, c, c),
            "add, layer_norm": lambda: ops.add_layer_norm(x, r, w, None, 1e-5),
            "mlp.Wi": self._linear(x, c, 2 * wide),
            "gated_halves": lambda: ops.geglu(both, "erf"),
            "mlp.Wo": self._linear(inner, wide, c),
            "sum, layer_norm": lambda: ops.layer_norm(ops.add(x, r), w, None, 1e-5),
        }

    def _qwen3(self) -> dict[str, Callable[[], Any]]:
        ops, config, batch = self._ops, self._config, self._batch
        c, wide, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
        x, r, gate, up = (self._rows(size) for size in (c, c, wide, wide))
        many, keys, values = (self._rows(size) for size in (heads * d, key_heads * d, key_heads * d))
        w, head, table = self._norm(c), self._norm(d), ops.rope_table(1e6, d)
        q, k, v = ops.heads(many, heads), ops.heads(keys, key_heads), ops.heads(values, key_heads)
        one, two = self._linear(x, c, key_heads * d), self._linear(x, c, wide)
        turned = lambda h: ops.rope(ops.rms_norm(h, head, 1e-6), table, batch)  # noqa: E731
        return {
            "q_proj": self._linear(x, c, heads * d),
            "k_proj, v_proj": lambda: (one(), one()),
            "normed, rotated q, k": lambda: (turned(q), turned(k)),
            "attention": lambda: ops.attention(q, k, v, batch, scale=1 / math.sqrt(d), causal=True),
            "o_proj": self._linear(many, heads * d, c),
            "add, rms_norm": lambda: ops.add_rms_norm(x, r, w, 1e-6),
            "gate_proj, up_proj": lambda: (two(), two()),
            "gated_pair": lambda: ops.swiglu(gate, up),
            "down_proj": self._linear(gate, wide, c),
            "sum, rms_norm": lambda: ops.rms_norm(ops.add(x, r), w, 1e-6),
        }

    def _linear(self, x: Any, into: int, out: int) -> Callable[[], Any]:
        w = self._device.to_device(self._drawn(out, into))
        return lambda: self._ops.linear(x, w)

    def _rows(self, size: int) -> Any:
        return self._device.to_device(self._drawn(self._call.rows, self._call.length, size))

    def _norm(self, size: int) -> Any:
        return self._device.to_device(np.ones(size, np.float16))

    def _drawn(self, *shape: int) -> Any:
        return (self._rng.standard_normal(shape, dtype=np.float32) * 0.1).astype(np.float16)


class _Turn:
    """Of two kinds of layer in a proportion, which comes next: spread evenly, the first kind first."""

    def __init__(self, first: int, of: int) -> None:
        self._first, self._of, self._count = first, of, 0

    def next_is_first(self) -> bool:
        """Whether the next layer is of the first kind."""
        place, self._count = self._count % self._of, self._count + 1
        return place * self._first // self._of != (place - 1) * self._first // self._of


class _NoWeights:
    def shaped(self, name: str, shape: Any) -> Any:
        raise KeyError(name)
