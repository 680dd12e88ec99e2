"""What programs are made of: how many operations of which kind, where they are expected to run, and how large they get.

Counted on converted programs, one for each segment, as they are shipped: the converter adds operations of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synapse_ane.placement_rules import dispatched, why_not
from synapse_ane.program import SegmentShape, building_folder, convert, record
from synapse_host.ops.weight_source import WeightSource
from synapse_host.owned_engine.family_table import Family, FamilyConfig
from synapse_host.owned_engine.segments import Segment, segments_for, tokens_to_cut


@dataclass(frozen=True, slots=True)
class CensusModel:
    """A model to count: its family, its config and the head its rows leave by.

    ``width`` is the features of hidden rows by which calls are cut into segments; the weights may be narrower than
    that, since no operation is added or left out for it.
    """

    family: Family
    config: FamilyConfig
    head: Callable[..., Any]
    width: int
    kinds: bool = False


@dataclass(slots=True)
class Census:
    """The operations of the programs of one length. ``refused`` counts by (kind, reason) what the engine may not take.

    ``largest`` is the most numbers of one value, ``longest`` the longest axis, ``most_scores`` the most scores of one
    head in one operation, and ``constant_bytes`` what all constants but the weights take: angles, masks, positions.
    """

    length: int
    programs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    largest: int = 0
    longest: int = 0
    most_scores: int = 0
    constant_bytes: int = 0

    @property
    def operations(self) -> int:
        """Operations that are computed at all."""
        return self.kinds.total()

    @property
    def share(self) -> float:
        """Part of them that is expected on the Neural Engine."""
        return 1 - self.refused.total() / self.operations if self.operations else 0.0

    def count(self, function: Any, weights: frozenset[int]) -> None:
        """Add the operations of one function; ``weights`` are the sizes of constants that are no masks or angles."""
        self.programs += 1
        for operation in dispatched(function):
            self.kinds[operation.op_type] += 1
            reason = why_not(operation)
            if reason is not None:
                self.refused[operation.op_type, reason] += 1
            for value in operation.outputs:
                self.largest = max(self.largest, int(np.prod(value.shape)))
                self.longest = max(self.longest, *value.shape)
            if operation.op_type == "softmax":
                self.most_scores = max(self.most_scores, int(np.prod(operation.outputs[0].shape[-2:])))
        for operation in function.operations:
            value = operation.outputs[0].val if operation.op_type == "const" else None
            if isinstance(value, np.ndarray) and value.size not in weights:
                self.constant_bytes += value.nbytes


def census(model: CensusModel, weights: WeightSource, length: int, *, max_tokens: int) -> Census:
    """Count the programs of rows of ``length`` positions, segment by segment as the engine cuts them."""
    found = Census(length)
    layers = model.config.layers
    for segment in segments_for(layers, tokens_to_cut(layers, model.width, length)):
        for function, sizes in _converted(model, segment, weights, length, max_tokens):
            found.count(function, sizes)
    return found


def _converted(
    model: CensusModel, segment: Segment, weights: WeightSource, length: int, max_tokens: int
) -> Iterator[tuple[Any, frozenset[int]]]:
    kept = _Sizes(weights)
    shape = SegmentShape(length, model.config.hidden_size, segment.has_stem, model.kinds and segment.has_stem)
    recorded = record(_build(model, segment), kept, shape, max_tokens=max_tokens)
    with building_folder():
        functions = list(convert(recorded)._mil_program.functions.values())
    for function in functions:
        yield function, frozenset(kept.sizes)


def _build(model: CensusModel, segment: Segment) -> Callable[..., Any]:
    family, config = model.family, model.config

    def build(ops: Any, batch: Any, hidden: Any) -> Any:
        x = family.stem(ops, config, batch) if segment.has_stem else hidden
        for i in range(segment.first, segment.stop):
            x = family.block(ops, config, i, x, batch)
        return ops.result(model.head(ops, config, x, batch)) if segment.has_head else x

    return build


class _Sizes:
    """A checkpoint that notes the sizes of the tensors it was asked for."""

    def __init__(self, weights: WeightSource) -> None:
        self._weights = weights
        self.sizes: set[int] = set()

    def tensor(self, name: str) -> Any:
        found = self._weights.tensor(name)
        self.sizes.add(int(np.prod(found.shape)))
        return found
