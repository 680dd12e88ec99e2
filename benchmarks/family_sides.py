"""The sides of the family comparison, each in a process of its own: our engine, transformers, ONNX Runtime.

A job is so many rows of one length and how many of them to compute at a time; the answer is the seconds it took and the
vectors. Threads are the cores of the process on every side.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model

Pooling = Literal["mean", "cls", "last"]
#: Seconds an export may take before its side is left out.
EXPORT_S = 150


@dataclass(frozen=True, slots=True)
class Cell:
    """``rows`` seeded rows of ``tokens`` tokens below ``vocab``; a peer computes ``at_once`` of them at a time."""

    rows: int
    tokens: int
    vocab: int
    at_once: int = 0
    seed: int = 0

    def ids(self) -> npt.NDArray[np.int64]:
        """Token ids [rows, tokens]."""
        drawn = np.random.default_rng((self.seed, self.rows, self.tokens))
        return drawn.integers(4, self.vocab, (self.rows, self.tokens))


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds of one computation, and unit vectors float32 [rows, dims]."""

    seconds: float
    vectors: npt.NDArray[np.float32]


Side = Callable[[Cell], Answer]


def make_ours(directory: Path, pooling: Pooling, max_tokens: int) -> Side:
    """The cpu lane's engine in its best dtype; it batches as it sees fit."""
    from synapse_owned_cpu import plugin

    dtype = plugin.synapse_describe().dtypes[0]
    # Entered for good, and kept: the model is wanted until the process ends.
    loaded = loaded_model(plugin, directory, dtype=dtype, max_tokens=max_tokens)
    model = loaded.__enter__()

    def run(cell: Cell, loaded: object = loaded) -> Answer:
        batch = batch_of([row.astype(np.int32) for row in cell.ids()], pooling)
        began = time.perf_counter()
        vectors = plugin.synapse_embed(model, batch, ignore_progress)
        return Answer(time.perf_counter() - began, vectors)

    return run


def make_transformers(directory: Path, pooling: Pooling) -> Side:
    """Transformers in bfloat16 with its fused attention."""
    import torch

    model = _published(directory, torch.bfloat16, "sdpa")

    def run(cell: Cell) -> Answer:
        ids = torch.from_numpy(cell.ids())
        began = time.perf_counter()
        with torch.inference_mode():
            parts = [
                _pooled(model(input_ids=part, attention_mask=torch.ones_like(part)).last_hidden_state, pooling)
                for part in ids.split(cell.at_once)
            ]
            vectors = torch.nn.functional.normalize(torch.cat(parts).float(), dim=-1)
        return Answer(time.perf_counter() - began, vectors.numpy())

    return run


def make_onnx(directory: Path, pooling: Pooling) -> Side:
    """ONNX Runtime in float32 over the graph torch exports."""
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory(prefix="synapse-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(EXPORT_S)
        _export(_published(directory, torch.float32, "eager"), path)
        signal.alarm(0)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(cell: Cell) -> Answer:
        ids = cell.ids()
        began = time.perf_counter()
        parts = []
        for start in range(0, len(ids), cell.at_once):
            part = ids[start : start + cell.at_once]
            (hidden,) = session.run(None, dict(zip(names, (part, np.ones_like(part)), strict=False)))
            parts.append(np.asarray(_pooled(hidden, pooling)))
        vectors = np.concatenate(parts)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        return Answer(time.perf_counter() - began, vectors)

    return run


def _published(directory: Path, dtype: Any, attention: str) -> Any:
    # The files are local; nothing may be asked of a network while time is taken.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import torch
    from transformers import AutoModel

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return AutoModel.from_pretrained(str(directory), dtype=dtype, attn_implementation=attention).eval()


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"the export took more than {EXPORT_S} s")


def _pooled(hidden: Any, pooling: Pooling) -> Any:
    """Rows without padding, so that every position counts."""
    if pooling == "mean":
        return hidden.mean(1)
    return hidden[:, 0] if pooling == "cls" else hidden[:, -1]


def _export(model: Any, path: Path) -> None:
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.ones((2, 16), dtype=torch.int64)
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=2, max=1024)
    shape = {0: rows, 1: length}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Hidden(),
            (ids, torch.ones_like(ids)),
            str(path),
            input_names=["input_ids", "attention_mask"],
            dynamic_shapes=(shape, shape),
            dynamo=True,
            # The runtime optimises what it loads; doing it here too takes minutes with large weights.
            optimize=False,
            verbose=False,
        )
