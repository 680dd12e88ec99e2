"""EMBED_BATCH: token ids to the hook's batch, and the check that every vector may leave the worker.

Imported at the first batch, because it needs numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from synapse_host.hookspecs import EmbedBatch, PluginError, Pooling, Progress
from synapse_host.worker.loading import Resident
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.token_rows import counted_ids
from synapse_host.worker_protocol.item_refusal import refusal_text
from synapse_host.worker_protocol.messages import EmbedBatchRequest

if TYPE_CHECKING:
    from synapse_host.hookspecs import Vectors

_POOLINGS = ("mean", "cls", "last")
_INFINITE = float("inf")


def embed(plugin: Plugin, resident: Resident, request: EmbedBatchRequest, raw: bytes, progress: Progress) -> memoryview:
    """The little-endian f32 rows of every item, in order.

    Raises:
        PluginError: ``invalid_request`` for a batch that does not fit together; ``non_finite_output`` or
            ``zero_output`` naming the first such item.

    """
    batch = _batch(request, raw)
    vectors = plugin.hook("synapse_embed")(model=resident.model, batch=batch, progress=progress)
    _check_shape(vectors, (len(request.items), resident.dims))
    _check_values(vectors, batch)
    return np.ascontiguousarray(vectors, dtype="<f4").data.cast("B")


def _batch(request: EmbedBatchRequest, raw: bytes) -> EmbedBatch:
    counts = [item["n_tokens"] for item in request.items]
    names = [item["id"] for item in request.items]
    if request.pooling not in _POOLINGS:
        raise PluginError("invalid_request", f"pooling {request.pooling!r} is not one of {', '.join(_POOLINGS)}")
    if not counts:
        raise PluginError("invalid_request", "EMBED_BATCH has no items; send at least one")
    if 0 in counts:
        raise PluginError("invalid_request", refusal_text(names[counts.index(0)], "n_tokens is 0; send at least one"))
    ids = counted_ids(request, raw)
    return EmbedBatch(ids, counts, names, cast("Pooling", request.pooling), request.normalize)


def _check_shape(vectors: Any, expected: tuple[int, int]) -> None:
    if not isinstance(vectors, np.ndarray) or vectors.shape != expected or vectors.dtype != np.float32:
        kind = f"{vectors.dtype} {list(vectors.shape)}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise TypeError(f"synapse_embed returned {kind}, expected is float32 {list(expected)}")


def _check_values(vectors: Vectors, batch: EmbedBatch) -> None:
    with np.errstate(all="ignore"):
        squares = np.vecdot(vectors, vectors).tolist()
    # One pass tells nearly always. Squares that pass the range of a float, or fall under it, tell nothing of the row.
    if all(0.0 < square < _INFINITE for square in squares):
        return
    if not np.isfinite(vectors).all():
        row = int(np.isfinite(vectors).all(axis=1).argmin())
        text = refusal_text(batch.item_ids[row], "its vector holds NaN or infinity; use another dtype or backend")
        raise PluginError("non_finite_output", text)
    filled = vectors.any(axis=1)
    if not filled.all():
        text = refusal_text(
            batch.item_ids[int(filled.argmin())], "its vector is all zeros; the model files are suspect"
        )
        raise PluginError("zero_output", text)
