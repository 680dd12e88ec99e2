from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import PluginError
from synapse_host.testing.plain_plugin import PlainPlugin
from synapse_host.testing.workers.running_worker import packed_ids
from synapse_host.worker.loading import Resident
from synapse_host.worker.reranking import rerank
from synapse_host.worker_protocol.messages import Rerank, RerankSequences

RESIDENT = Resident(object(), -1, 0, None, "rerank")  # type: ignore[arg-type]


def scores(*values: float) -> Callable[..., Any]:
    return lambda **_: np.array(values, dtype=np.float32)


def run(plugin: PlainPlugin, request: Rerank | RerankSequences, *rows: list[int]) -> list[float]:
    raw = rerank(plugin, RESIDENT, request, packed_ids(*rows), lambda *_: None)
    return list(np.frombuffer(raw, "<f4"))


def sequences(*counts: int) -> RerankSequences:
    return RerankSequences("r", "m", [{"n_tokens": count} for count in counts])


def pairs(query: int, *counts: int) -> Rerank:
    return Rerank("r", "m", query, [{"n_tokens": count} for count in counts])


def test_sequences_reach_their_hook_row_by_row_as_they_were_composed() -> None:
    seen: list[Any] = []

    def hook(model: object, sequences: list[Any], progress: object) -> Any:
        seen.extend(sequences)
        return np.array([0.25, -3.0], np.float32)

    assert run(PlainPlugin(synapse_rerank=hook), sequences(3, 1), [1, 2, 3], [-7]) == [0.25, -3.0]
    assert [row.tolist() for row in seen] == [[1, 2, 3], [-7]]
    assert {row.dtype for row in seen} == {np.dtype(np.int32)}


def test_pairs_reach_their_hook_with_the_query_apart() -> None:
    seen: list[Any] = []

    def hook(model: object, query: Any, candidates: list[Any], progress: object) -> Any:
        seen.extend([query, *candidates])
        return np.zeros(3, np.float32)

    assert run(PlainPlugin(synapse_rerank_pairs=hook), pairs(2, 1, 0, 2), [5, 6], [1], [], [2, 3]) == [0, 0, 0]
    assert [row.tolist() for row in seen] == [[5, 6], [1], [], [2, 3]]


def test_a_query_and_candidates_of_empty_texts_are_legal() -> None:
    assert run(PlainPlugin(synapse_rerank_pairs=scores(1.0, 2.0)), pairs(0, 0, 0)) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("request_", "rows", "said"),
    [
        (sequences(), (), "nothing to score"),
        (pairs(2), ([1, 2],), "nothing to score"),
        (sequences(2, 1), ([1, 2],), r"8 bytes does not hold the 3 token ids"),
        (sequences(2), ([1, 2, 3],), r"12 bytes does not hold the 2 token ids"),
        (pairs(1, 2), ([1], [2]), r"8 bytes does not hold the 3 token ids"),
        (sequences(1, 0), ([1],), 'item "1": n_tokens is 0'),
    ],
    ids=["no sequences", "no candidates", "short", "long", "pairs short", "an empty sequence"],
)
def test_what_does_not_fit_together_is_refused_before_the_hook(request_: Any, rows: Any, said: str) -> None:
    plugin = PlainPlugin(synapse_rerank=pytest.fail, synapse_rerank_pairs=pytest.fail)
    with pytest.raises(PluginError, match=said) as refused:
        run(plugin, request_, *rows)
    assert refused.value.code == "invalid_request"


def test_half_a_token_id_is_refused() -> None:
    with pytest.raises(PluginError, match="7 bytes"):
        rerank(PlainPlugin(synapse_rerank=pytest.fail), RESIDENT, sequences(1), bytes(7), lambda *_: None)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_a_score_that_is_no_number_names_its_candidate(bad: float, place: int) -> None:
    values = [1.0, 2.0]
    values[place] = bad
    for hook, request_, rows in (
        ("synapse_rerank", sequences(1, 1), ([1], [2])),
        ("synapse_rerank_pairs", pairs(1, 1, 0), ([9], [1], [])),
    ):
        with pytest.raises(PluginError, match=f'item "{place}"') as refused:
            run(PlainPlugin(**{hook: scores(*values)}), request_, *rows)
        assert refused.value.code == "non_finite_output"


def test_zero_is_a_score() -> None:
    assert run(PlainPlugin(synapse_rerank=scores(0.0)), sequences(1), [1]) == [0.0]


@pytest.mark.parametrize(
    "answer",
    [None, [1.0, 2.0], np.ones(3, np.float32), np.ones((2, 1), np.float32), np.ones(2, np.float64), np.float32(1)],
    ids=["nothing", "a list", "one too many", "columns", "double", "one number"],
)
def test_anything_but_a_float32_per_row_is_the_plugins_mistake(answer: Any) -> None:
    with pytest.raises(TypeError, match=r"synapse_rerank returned .*expected is float32 \[2\]"):
        run(PlainPlugin(synapse_rerank=lambda **_: answer), sequences(1, 1), [1], [2])


def test_scores_leave_in_order_whatever_their_memory_layout() -> None:
    every_other = np.repeat(np.array([1, 2], np.float32), 2)[::2]
    assert run(PlainPlugin(synapse_rerank=lambda **_: every_other), sequences(1, 1), [1], [2]) == [1.0, 2.0]
