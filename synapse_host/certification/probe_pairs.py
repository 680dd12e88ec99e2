"""The pairs every probe of a reranker scores: pools of candidates, and a long candidate cut at the edges of shapes."""

from __future__ import annotations

import json
from importlib import resources

from synapse_host.errors import InvalidRequest
from synapse_host.tokenization.pairs import PairTokenizer
from synapse_host.values import value_object

POOLS = 8
#: Places of the queries among the probe's texts.
_QUERIES = range(6, 6 + 7 * POOLS, 7)


@value_object
class ProbePairs:
    """Composed sequences, and the places of those that compete for one query."""

    rows: list[list[int]]
    pools: list[list[int]]


def probe_pairs(pairs: PairTokenizer) -> ProbePairs:
    """At least 64 sequences under a model's own tokenizer, template and limit.

    Each query meets itself among its candidates: without one candidate that fits, the scores of a trained reranker
    hardly vary. Edge lengths that leave no room beside the query are left out.
    """
    data = json.loads(resources.files(__package__).joinpath("probe_texts.json").read_text("utf-8"))
    texts: list[str] = data["texts"]
    rows: list[list[int]] = []
    pools = []
    for pool, place in enumerate(_QUERIES):
        candidates = [texts[place], *texts[pool::POOLS]]
        pools.append([*range(len(rows), len(rows) + len(candidates))])
        rows += [pair.ids for pair in pairs.compose(_fitting(pairs, texts[place]), candidates)]
    query = _fitting(pairs, texts[_QUERIES[0]])
    return ProbePairs(rows + _edges(pairs, query, data["long_text"], data["edge_lengths"]), pools)


def _fitting(pairs: PairTokenizer, query: str) -> str:
    """The query, or as many of its first words as leave candidates half of a sequence under a short limit."""
    words = query.split(" ")
    while True:
        text = " ".join(words)
        try:
            pairs.compose(text, [""], limit=pairs.max_tokens // 2)
        except InvalidRequest:
            if len(words) == 1:
                return text
            words = words[: len(words) // 2]
        else:
            return text


def _edges(pairs: PairTokenizer, query: str, document: str, lengths: list[int]) -> list[list[int]]:
    edges = []
    for length in lengths:
        try:
            (pair,) = pairs.compose(query, [document], limit=min(length, pairs.max_tokens))
        except InvalidRequest:
            continue
        if len(pair.ids) == length:
            edges.append(pair.ids)
    return edges
