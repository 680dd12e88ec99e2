"""RERANK and RERANK_SEQUENCES: token ids to the hook's rows, and the check that every score may leave the worker.

Imported at the first of them, because it needs numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from synapse_host.hookspecs import PluginError, Progress
from synapse_host.worker.loading import Resident
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.token_rows import token_rows
from synapse_host.worker_protocol.item_refusal import refusal_text
from synapse_host.worker_protocol.messages import Rerank, RerankSequences

if TYPE_CHECKING:
    from synapse_host.hookspecs import Vectors


def rerank(
    plugin: Plugin, resident: Resident, request: Rerank | RerankSequences, raw: bytes, progress: Progress
) -> memoryview:
    """One little-endian f32 per candidate or sequence, in order. Refusals name one by its position.

    Raises:
        PluginError: ``invalid_request`` for rows that do not fit together; ``non_finite_output`` naming the first such
            score.

    """
    rows = token_rows(request, raw)
    if isinstance(request, Rerank):
        query, *candidates = rows
        _check_candidates(request, len(candidates))
        hook = plugin.hook("synapse_rerank_pairs")
        scores = hook(model=resident.model, query=query, candidates=candidates, progress=progress)
        return _checked(scores, len(candidates), "synapse_rerank_pairs")
    _check_candidates(request, len(rows))
    _check_filled(rows)
    scores = plugin.hook("synapse_rerank")(model=resident.model, sequences=rows, progress=progress)
    return _checked(scores, len(rows), "synapse_rerank")


def _check_candidates(request: Rerank | RerankSequences, count: int) -> None:
    if not count:
        raise PluginError("invalid_request", f"{request.TYPE} has nothing to score; send at least one candidate")


def _check_filled(rows: list[Any]) -> None:
    """A composed sequence has its special tokens at least; a candidate of RERANK may be an empty text."""
    for position, row in enumerate(rows):
        if not len(row):
            raise PluginError("invalid_request", refusal_text(str(position), "n_tokens is 0; send at least one"))


def _checked(scores: Any, count: int, hook: str) -> memoryview:
    if not isinstance(scores, np.ndarray) or scores.shape != (count,) or scores.dtype != np.float32:
        kind = f"{scores.dtype} {list(scores.shape)}" if isinstance(scores, np.ndarray) else type(scores).__name__
        raise TypeError(f"{hook} returned {kind}, expected is float32 [{count}]")
    _check_finite(scores)
    return np.ascontiguousarray(scores, dtype="<f4").data.cast("B")


def _check_finite(scores: Vectors) -> None:
    finite = np.isfinite(scores)
    if not finite.all():
        text = refusal_text(str(int(finite.argmin())), "its score is NaN or infinite; use another dtype or backend")
        raise PluginError("non_finite_output", text)
