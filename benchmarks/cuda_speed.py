"""Tokens a second of whole models with random weights: our engine, and transformers with its fused attention.

Rows have 180 to 420 tokens, 300 in the mean, and real tokens count. Each side batches as it does best: ours by its
ladder, transformers by length, 32 rows at a time.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from synapse_owned_cuda import plugin

from benchmarks.cuda_roofline import BARS
from benchmarks.random_checkpoints import SHAPES, Shape, write_checkpoint
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model

#: Padded tokens of a call: what the plugin recommends, and more.
BUDGETS = (3072, 16_384)
_PASSES = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """One checkpoint of random weights, how its vectors are pooled, and the rows it is given."""

    name: str
    shape: Shape
    pooling: Any
    rows: int
    least: int = 180
    most: int = 420

    def drawn(self) -> list[Any]:
        """Rows of seeded token ids."""
        rng = np.random.default_rng(11)
        lengths = rng.integers(self.least, self.most + 1, self.rows)
        return [rng.integers(4, self.shape.vocab, length).astype(np.int32) for length in lengths]


def subjects(stand_in: bool) -> list[Subject]:
    """The published shapes; without a device, theirs in small."""
    if not stand_in:
        return [Subject("gte", SHAPES["gte"], "cls", 512), Subject("qwen3", SHAPES["qwen3"], "last", 192)]
    return [
        Subject("gte", _small(SHAPES["gte"]), "cls", 3, 4, 20),
        Subject("qwen3", _small(SHAPES["qwen3"]), "last", 3, 4, 20),
    ]


def write_subjects(stand_in: bool, folder: Path) -> dict[str, Path]:
    """Every checkpoint on disk, by name."""
    found = {subject.name: folder / subject.name for subject in subjects(stand_in)}
    for subject in subjects(stand_in):
        write_checkpoint(found[subject.name], subject.shape)
    return found


def ours(stand_in: bool, directories: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Our engine in f16, by the padded tokens of a call."""
    for subject in subjects(stand_in):
        for budget in BUDGETS:
            row = {"side": "owned-cuda", "model": subject.name, "dtype": "f16", "tokens a call": budget}
            yield row | _told(lambda s=subject, b=budget: _our_speed(s, directories[s.name], b), subject)


def transformers(stand_in: bool, directories: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Transformers with ``sdpa``, in f16 and bf16; on the CPU, in f32, where a stand-in takes the device's place."""
    for subject in subjects(stand_in):
        for dtype in ("float32",) if stand_in else ("float16", "bfloat16"):
            row = {"side": "transformers, sdpa", "model": subject.name, "dtype": dtype, "rows a call": 32}
            directory = directories[subject.name]
            yield row | _told(lambda s=subject, d=directory, t=dtype: _their_speed(s, d, t, stand_in), subject)


def _told(measure: Callable[[], float], subject: Subject) -> dict[str, Any]:
    try:
        speed = measure()
    except Exception as failure:  # the next side may still run
        return {"error": repr(failure)}
    finally:
        gc.collect()
    return {"tok/s": speed, "of the RTX 4090 bar": f"{speed / BARS[subject.name]:.2f}"}


def _our_speed(subject: Subject, directory: Path, budget: int) -> float:
    recommended = plugin.RECOMMENDED_BATCH
    plugin.RECOMMENDED_BATCH = replace(recommended, token_budget=budget)
    try:
        asked = {"pooling": subject.pooling}
        with loaded_model(plugin, directory, dtype="f16", max_tokens=512, runtime_config=asked) as model:
            rows = subject.drawn()
            batch = batch_of(rows, subject.pooling)
            run = lambda: plugin.synapse_embed(model, batch, ignore_progress)  # noqa: E731
            return _speed(run, rows)
    finally:
        plugin.RECOMMENDED_BATCH = recommended


def _their_speed(subject: Subject, directory: Path, dtype: str, stand_in: bool) -> float:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import torch
    from transformers import AutoModel

    device = "cpu" if stand_in else "cuda"
    loaded = AutoModel.from_pretrained(directory, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    model = loaded.to(device).eval()
    rows = subject.drawn()
    ordered = sorted(rows, key=len)
    calls = [_padded(torch, ordered[at : at + 32], device) for at in range(0, len(ordered), 32)]

    def run() -> Any:
        with torch.inference_mode():
            made = [model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0].float() for ids, mask in calls]
            # To the host, as our vectors come: the copy waits for all of it.
            return [each.cpu() for each in made]

    return _speed(run, rows)


def _padded(torch: Any, rows: list[Any], device: str) -> tuple[Any, Any]:
    longest = max(map(len, rows))
    ids, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(2))
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _speed(run: Callable[[], Any], rows: list[Any]) -> float:
    """Real tokens a second, the best of some passes after one that warms up."""
    run()
    best = float("inf")
    for _ in range(_PASSES):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return sum(map(len, rows)) / best


def _small(shape: Shape) -> Shape:
    """The same model with two layers of 32 features: two heads, of 16 or of what its config says."""
    config = dict(shape.config) | {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if "head_dim" in config:
        config |= {"num_key_value_heads": 1, "head_dim": 16}
    else:
        config |= {"cls_token_id": 1, "sep_token_id": 2}
    sizes = {768: 32, 1024: 32, 2304: 96, 1152: 48, 3072: 48, 50_368: 96, 151_669: 96, 2048: 32, 128: 16}
    if "head_dim" not in config:
        return Shape(config, _kept(shape, sizes))
    return Shape(config, _kept(shape, sizes, keys=16))


def _kept(shape: Shape, sizes: dict[int, int], keys: int | None = None) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, dims in shape.tensors.items():
        if any(f"layers.{i}." in name for i in range(2, 100)):
            continue
        small = tuple(sizes[size] for size in dims)
        found[name] = (keys, small[1]) if keys and name.endswith(("k_proj.weight", "v_proj.weight")) else small
    return found
