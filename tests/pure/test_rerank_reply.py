"""The typed answer of rerank.score, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.replies import Truncation
from synapse_host.client.rerank_reply import read_rerank_reply

PAYLOAD: dict[str, Any] = {
    "fingerprint": "f" * 64,
    "table_epoch": 0,
    "dims": 1,
    "provenance": {"engine": {"engine": "owned-cpu"}},
    "module_generation": 3,
    "equivalent_to": [],
    "scores": [0.5, -2, 3.25, 0.5],
    "score_kind": "logit",
    "work_class": "interactive",
    "real_token_counts": [5, 9, 7, 5],
    "truncation_disclosures": [{"submitted_tokens": 9, "effective_tokens": 9, "truncated": False}] * 4,
}


def read(documents: int = 4, **changes: Any) -> Any:
    return read_rerank_reply(Received({**PAYLOAD, **changes}, None), documents)


def test_scores_keep_their_order_and_order_sorts_them() -> None:
    reply = read()
    assert reply.scores == (0.5, -2.0, 3.25, 0.5)
    assert reply.order() == [2, 0, 3, 1]
    assert reply.truncations[0] == Truncation(9, 9, False)
    assert (reply.score_kind, reply.fingerprint, reply.real_token_counts) == ("logit", "f" * 64, (5, 9, 7, 5))


@pytest.mark.parametrize("field", sorted(set(PAYLOAD) - {"dims", "work_class"}))
def test_a_missing_field_is_a_mismatch_that_names_it(field: str) -> None:
    payload = {name: value for name, value in PAYLOAD.items() if name != field}
    with pytest.raises(ReplyMismatch, match=field):
        read_rerank_reply(Received(payload, None), 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"documents": 3},
        {"scores": [1.0, 2.0, 3.0]},
        {"scores": [1.0, 2.0, 3.0, float("nan")]},
        {"scores": [1.0, 2.0, 3.0, "much"]},
        {"scores": None},
        {"real_token_counts": [1]},
        {"truncation_disclosures": []},
        {"truncation_disclosures": [{}] * 4},
    ],
    ids=str,
)
def test_an_answer_of_another_shape_is_a_mismatch(changes: dict[str, Any]) -> None:
    with pytest.raises(ReplyMismatch, match=r"rerank\.score"):
        read(**changes)
