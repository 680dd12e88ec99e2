"""RERANK: pairs composed as BOS query SEP candidate EOS, scored by the file's classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synapse_host.hookspecs import PluginError, Progress
from synapse_llama_worker import limits
from synapse_llama_worker.call_arrays import Int32
from synapse_llama_worker.context import Float32
from synapse_llama_worker.model import LlamaModel
from synapse_llama_worker.row_calls import pooled_rows


def compose(model: LlamaModel, query: Int32, candidates: Sequence[Int32]) -> list[Int32]:
    """One complete sequence for each candidate.

    Raises:
        PluginError: model_unsupported when the vocabulary lacks one of the three special tokens.

    """
    library, vocabulary = model.library, model.vocabulary_handle
    bos, sep = library.llama_vocab_bos(vocabulary), library.llama_vocab_sep(vocabulary)
    eos = library.llama_vocab_eos(vocabulary)
    if eos < 0:
        # BERT's vocabularies have no end of text; their separator ends a pair.
        eos = sep
    if min(bos, sep) < 0:
        raise PluginError("model_unsupported", f"the vocabulary has BOS {bos} and SEP {sep}, and a pair needs both")
    before, between, after = (np.array([token], np.int32) for token in (bos, sep, eos))
    return [np.concatenate([before, query, between, candidate, after]) for candidate in candidates]


def score(model: LlamaModel, sequences: Sequence[Int32], progress: Progress) -> Float32:
    """The classifier's first output for each sequence, float32 [sequences].

    Raises:
        PluginError: invalid_request for a sequence too long or an id outside the vocabulary; the message names its
            place.

    """
    names = [str(place) for place in range(len(sequences))]
    limits.check_rows(model.row_limits, sequences, names, model.facts.positions)
    outputs = pooled_rows(model.context("rank"), sequences, model.facts.classifier_outputs, progress)
    return np.ascontiguousarray(outputs[:, 0])
