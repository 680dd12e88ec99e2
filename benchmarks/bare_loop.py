"""The bare side: tokenizer and engine in one process, no host, no socket, no checks.

It runs the batches the host's worker was given, in their order, so that only what the host adds differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from synapse_host.hookspecs import EmbedBatch
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_host.testing.engine_runs import ignore_progress, loaded_model

MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class BarePass:
    """Texts, and the batches of token rows (ids as bytes) the host made of them."""

    texts: list[str]
    batches: list[tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class BareResult:
    """Seconds of tokenization and engine together, real tokens, and the vectors in the order of the texts."""

    seconds: float
    tokens: int
    vectors: npt.NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BareCall:
    """One row of token ids for one engine call."""

    row: bytes


Job = BarePass | BareCall


def make_bare_loop(model_directory: Path) -> Callable[[Job], BareResult | float]:
    """Load tokenizer and engine; a pass gives its result, a call the seconds it took."""
    from synapse_owned_cpu import evidence, plugin

    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    dtype = evidence.dtypes_of(evidence.read_machine().isa)[0]
    loop = _BareLoop(tokenizer, loaded_model(plugin, model_directory, dtype=dtype, max_tokens=MAX_TOKENS))
    return lambda job: loop.call(job) if isinstance(job, BareCall) else loop.run(job)


class _BareLoop:
    def __init__(self, tokenizer: Tokenizer, loaded: AbstractContextManager[OwnedEngine]) -> None:
        self._tokenizer = tokenizer
        # Entered for good: the model is wanted until the process ends.
        self._loaded = loaded
        self._engine = loaded.__enter__()

    def run(self, job: BarePass) -> BareResult:
        batches = self._places(job)
        vectors = np.empty((len(job.texts), self._engine.dims), np.float32)
        started = time.perf_counter()
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(job.texts)]
        for places in batches:
            vectors[places] = self._embed([rows[place] for place in places])
        seconds = time.perf_counter() - started
        return BareResult(seconds, sum(map(len, rows)), vectors)

    def call(self, job: BareCall) -> float:
        ids = np.frombuffer(job.row, "<i4")
        batch = _batch(ids, [len(ids)])
        started = time.perf_counter()
        self._engine.embed(batch, ignore_progress)
        return time.perf_counter() - started

    def _embed(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        ids = np.array([token for row in rows for token in row], np.int32)
        return self._engine.embed(_batch(ids, [len(row) for row in rows]), ignore_progress)

    def _places(self, job: BarePass) -> list[list[int]]:
        """The batches as places in the texts.

        Raises:
            ValueError: the host's rows are not the texts' tokens, one row for each text.

        """
        rows = [np.array(encoding.ids, "<i4").tobytes() for encoding in self._tokenizer.encode_batch_fast(job.texts)]
        place = {row: number for number, row in enumerate(rows)}
        if len(place) != len(rows):
            raise ValueError(f"{len(rows) - len(place)} of {len(rows)} texts have the tokens of another; choose others")
        batches = [[place[row] for row in batch] for batch in job.batches]
        sent = sorted(number for batch in batches for number in batch)
        if sent != list(range(len(rows))):
            raise ValueError(
                f"the host's worker was given {len(sent)} rows for {len(rows)} texts; it must be each once"
            )
        return batches


def _batch(ids: npt.NDArray[np.int32], counts: list[int]) -> EmbedBatch:
    return EmbedBatch(ids, counts, [""] * len(counts), "mean", True)
