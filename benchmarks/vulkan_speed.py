"""Speed of the Vulkan backend on the device it chooses: every variant of the product, MiniLM, and the host's share.

``python -m benchmarks.vulkan_speed [TEXTS]``: products of the shapes of MiniLM and gte-modernbert by each variant, real
tokens a second over the docstring corpus (all of it unless a number of texts is given), and what the host costs in
one replayed forward.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from synapse_vulkan import plugin
from synapse_vulkan.measuring import speed_of
from synapse_vulkan.opening import open_runtime
from synapse_vulkan.product import VARIANTS
from synapse_vulkan.runtime import Runtime
from tokenizers import Tokenizer

from benchmarks.corpus import TEXTS, docstrings
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model
from synapse_host.testing.models.minilm import minilm_directory

SETTINGS = {"allow_software_device": "true"}
MAX_TOKENS = 512
#: Rows, depth and columns: MiniLM's widest product and narrowest, gte's feed-forward.
SHAPES = ((1024, 384, 1536), (1024, 1536, 384), (1024, 384, 384), (1024, 768, 2304))
_PASSES = 2
_FORWARDS = 20


def products(runtime: Runtime) -> None:
    """A line of every variant for every shape."""
    sys.stdout.write(f"\nproducts in GFLOP/s on {runtime.device.facts.name}\n")
    for rows, depth, columns in SHAPES:
        speeds = ", ".join(
            f"{variant.name} {speed_of(runtime, variant, rows, depth, columns):.1f}" for variant in VARIANTS
        )
        sys.stdout.write(f"  {rows} x {depth} x {columns}: {speeds}\n")


def corpus_rows(count: int) -> list[np.ndarray]:
    """The docstrings as rows of token ids, the longest first cut at the model's limit."""
    tokenizer = Tokenizer.from_file(str(minilm_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    encoded = tokenizer.encode_batch_fast(docstrings(TEXTS)[:count])
    return [np.array(encoding.ids, np.int32) for encoding in encoded]


def bulk(model: OwnedEngine, rows: list[np.ndarray]) -> None:
    """Real tokens a second, the best of some passes after the one that records."""
    tokens, batch = sum(map(len, rows)), batch_of(rows)
    began = time.perf_counter()
    model.embed(batch, ignore_progress)
    first = time.perf_counter() - began
    best = min(_timed(partial(model.embed, batch, ignore_progress)) for _ in range(_PASSES))
    sys.stdout.write(
        f"\nMiniLM over {len(rows)} docstrings, {tokens} tokens: {tokens / best:,.0f} tok/s "
        f"(first pass, which records every shape: {tokens / first:,.0f})\n"
    )


def host_share(model: OwnedEngine) -> None:
    """Milliseconds of a replayed forward that are not spent waiting for the device, the median of some."""
    rows = [np.arange(100, 120, dtype=np.int32)] * 8
    model.embed(batch_of(rows), ignore_progress)
    shares = []
    for _ in range(_FORWARDS):
        with _device_time(open_runtime()) as waited:
            whole = _timed(partial(model.embed, batch_of(rows), ignore_progress))
        shares.append((whole - sum(waited)) * 1000)
    sys.stdout.write(f"\nhost time of one replayed forward of 8 rows: {sorted(shares)[len(shares) // 2]:.2f} ms\n")


@contextmanager
def _device_time(runtime: Runtime) -> Iterator[list[float]]:
    """Seconds of every submission and its wait, the calls included."""
    device, seconds = runtime.device, list[float]()
    submit = device.submit
    device.submit = lambda commands: seconds.append(_timed(partial(submit, commands)))  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        device.submit = submit  # type: ignore[method-assign]


def _timed(call: partial[object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main(arguments: list[str]) -> None:
    """Print everything."""
    count = int(arguments[0]) if arguments else TEXTS
    products(open_runtime())
    with loaded_model(plugin, Path(minilm_directory()), max_tokens=MAX_TOKENS, settings=SETTINGS) as model:
        bulk(model, corpus_rows(count))
        host_share(model)


if __name__ == "__main__":
    main(sys.argv[1:])
