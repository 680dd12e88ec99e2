"""The token sequences every probe runs: fixed texts of many kinds, and one long text cut at the edges of shapes."""

from __future__ import annotations

import json
from importlib import resources

from synapse_host.tokenization.model_tokenizer import ModelTokenizer


def probe_rows(tokenizer: ModelTokenizer, max_tokens: int) -> list[list[int]]:
    """Token ids of the probe's rows under a model's own tokenizer and limit.

    A tokenizer that adds no special tokens makes none of an empty text, which then is no row. An edge row keeps the
    long text's first and last token, so that its special tokens stay where the model expects them, and drops from the
    middle; lengths past the model's limit are left out.
    """
    data = json.loads(resources.files(__package__).joinpath("probe_texts.json").read_text("utf-8"))
    rows = [encoded.ids for encoded in tokenizer.encode(data["texts"]) if encoded.ids]
    long_row = tokenizer.encode([data["long_text"]])[0].ids
    edges = [length for length in data["edge_lengths"] if length <= min(max_tokens, len(long_row))]
    return rows + [long_row[: length - 1] + long_row[-1:] for length in edges]
