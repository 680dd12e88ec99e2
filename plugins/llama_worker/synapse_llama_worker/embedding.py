"""EMBED_BATCH: rows through llama.cpp's own pooling, normalised here where asked."""

from __future__ import annotations

import numpy as np

from synapse_host.hookspecs import EmbedBatch, Progress
from synapse_llama_worker import limits
from synapse_llama_worker.context import Float32
from synapse_llama_worker.model import LlamaModel
from synapse_llama_worker.row_calls import pooled_rows


def embed(model: LlamaModel, batch: EmbedBatch, progress: Progress) -> Float32:
    """Vectors of every row, float32 [rows, dims], in the order of the batch.

    Raises:
        PluginError: invalid_request for a row too long or an id outside the vocabulary; the message names the item.

    """
    rows = np.split(batch.ids, np.cumsum(batch.counts)[:-1])
    limits.check_rows(model.row_limits, rows, batch.item_ids, model.facts.positions)
    vectors = pooled_rows(model.context(batch.pooling), rows, model.facts.width, progress)
    if batch.normalize:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        # A row of zeros stays one: the worker refuses it by name.
        vectors = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return vectors
