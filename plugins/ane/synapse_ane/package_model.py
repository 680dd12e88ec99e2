"""A loaded package set: every package ready on the engine, rows to the smallest that holds them, vectors or scores out.

A row is computed by itself, in the package its own length decides, so that what stands beside it changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_ane.core_ml_runtime import LoadedProgram, Placement, least_share, only_output
from synapse_ane.package_set import Package, package_for
from synapse_host.hookspecs import EmbedBatch, PluginError, Pooling, Progress
from synapse_host.model_files.compiled_package import IDS, KINDS, MASK
from synapse_host.owned_engine.row_refusal import row_refused

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
#: One score of the numbers a reranker gives for each row: float32 [rows, n] to [rows].
ReadScores = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class PackageUse:
    """How LOAD wants the packages used. ``read_scores`` is None where a package gives the score itself.

    ``separator`` is the token that ends the first text of a pair, for packages that tell the two apart.
    """

    rerank: bool
    pooling: Pooling
    normalize: bool
    separator: int | None = None
    read_scores: ReadScores | None = None


@dataclass(frozen=True, slots=True)
class ReadyPackage:
    """One package on the engine."""

    package: Package
    program: LoadedProgram
    placement: Placement

    def run(self, ids: Int32, separator: int | None) -> Float32:
        """What the program gives for one row: [n] of a package that pools, else [tokens, n] without the padding.

        Raises:
            RuntimeError: the engine refuses, or gives what is no output of a row.

        """
        length, tokens = self.package.length, len(ids)
        row = np.zeros((1, length), np.int32)
        row[0, :tokens] = ids
        inputs = {IDS: row, MASK: (np.arange(length) < tokens).astype(np.int32)[None]}
        if self.package.shape.kinds:
            inputs[KINDS] = _kinds(row, separator)
        name = self.package.shape.output
        found: Float32 = only_output(self.program.predict(inputs), name).astype(np.float32)
        pooled, whole = found.ndim == 2, found.ndim == 3 and found.shape[1] == length
        if len(found) != 1 or not (pooled or whole):
            raise RuntimeError(f"it gave {name!r} {list(found.shape)} for one row of {length} positions")
        told = self.package.shape.output_shape
        if told and found.shape != told:
            raise RuntimeError(f"it gave {name!r} {list(found.shape)} and says of itself that it gives {list(told)}")
        numbers: Float32 = found[0] if pooled else found[0, :tokens]
        return numbers


@dataclass
class PackageModel:
    """The packages of one model, ascending. ``dims`` is 0 for a reranker."""

    packages: list[ReadyPackage]
    use: PackageUse
    folder: Path
    dims: int = 0
    _placed: float | None = field(init=False)

    def __post_init__(self) -> None:
        self._placed = least_share(each.placement for each in self.packages)

    @property
    def buckets(self) -> list[int]:
        """The lengths a row may be padded to."""
        return [each.package.length for each in self.packages]

    @property
    def placement_share(self) -> float | None:
        """The least share of operations on the Neural Engine of any package; None where one is not known."""
        return self._placed

    def embed(self, batch: EmbedBatch, progress: Progress) -> Float32:
        """Float32 [rows, dims] in the order of the batch.

        Raises:
            PluginError: invalid_request for a row that no package holds, naming the item and both numbers, or for
                another pooling than that of the packages; inference_failed where the engine refuses.

        """
        if self.use.rerank:
            raise PluginError("operation_mismatch", "the packages give scores; load them with operation embed")
        rows = np.split(np.asarray(batch.ids, np.int32), np.cumsum(batch.counts)[:-1])
        chosen = self._chosen(rows, batch.item_ids)
        vectors = np.empty((len(rows), self.dims), np.float32)
        for place, (row, ready) in enumerate(zip(rows, chosen, strict=True)):
            vectors[place] = self.vector(ready, row, batch.pooling, normalize=batch.normalize)
            progress(place + 1, "inference")
        return vectors

    def rerank(self, sequences: Sequence[Int32], progress: Progress) -> Float32:
        """Float32 [rows], one score for each composed sequence. Raises as ``embed``; rows are named by their place."""
        if not self.use.rerank:
            raise PluginError("operation_mismatch", "the packages give vectors; load them with operation rerank")
        chosen = self._chosen(sequences, [str(place) for place in range(len(sequences))])
        scores = np.empty(len(sequences), np.float32)
        for place, (row, ready) in enumerate(zip(sequences, chosen, strict=True)):
            scores[place] = self.score(ready, row)
            progress(place + 1, "inference")
        return scores

    def vector(self, ready: ReadyPackage, row: Int32, pooling: Pooling, *, normalize: bool) -> Float32:
        """The vector of one row by one package."""
        found = self._run(ready, row)
        if found.ndim == 2:
            found = _pooled(found, pooling)
        elif pooling != self.use.pooling:
            raise PluginError(
                "invalid_request",
                f"the packages pool by themselves, as {self.use.pooling!r}; {pooling!r} is not theirs",
            )
        return _unit(found) if normalize else found

    def score(self, ready: ReadyPackage, row: Int32) -> float:
        """The score of one sequence by one package."""
        numbers = self._run(ready, row)
        if self.use.read_scores is not None:
            return float(np.asarray(self.use.read_scores(numbers[None])).reshape(-1)[0])
        return float(numbers[0])

    def unload(self) -> None:
        """Drop the programs and what was unpacked for them."""
        self.packages.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, ready: ReadyPackage, row: Int32) -> Float32:
        try:
            return ready.run(row, self.use.separator)
        except RuntimeError as refused:
            raise PluginError("inference_failed", f"{ready.package.name}: {refused}") from refused

    def _chosen(self, rows: Sequence[Int32], names: Sequence[str]) -> list[ReadyPackage]:
        """The package of every row, before any is computed."""
        by_package = {id(each.package): each for each in self.packages}
        packages = [each.package for each in self.packages]
        chosen = []
        for row, name in zip(rows, names, strict=True):
            package = package_for(packages, len(row)) if len(row) else None
            if package is None:
                problem = (
                    f"a row of {len(row)} tokens does not fit packages of 1 to {packages[-1].length}; split the text"
                )
                raise row_refused(name, problem)
            if row.min() < 0:
                raise row_refused(name, f"token id {row.min()} is below 0, and a look-up has none there; send others")
            chosen.append(by_package[id(package)])
        return chosen


def _pooled(rows: Float32, pooling: Pooling) -> Float32:
    if pooling == "mean":
        mean: Float32 = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    one: Float32 = rows[0 if pooling == "cls" else -1]
    return one


def _unit(vector: Float32) -> Float32:
    length = float(np.linalg.norm(vector.astype(np.float64)))
    # A vector of zeros stays one, and is refused by the worker.
    unit: Float32 = vector / np.float32(length) if length else vector
    return unit


def _kinds(row: Int32, separator: int | None) -> Int32:
    """0 up to and including the first separator of a row, 1 after it."""
    is_separator = row == -1 if separator is None else row == separator
    kinds: Int32 = (np.cumsum(is_separator, axis=1) > is_separator).astype(np.int32)
    return kinds
