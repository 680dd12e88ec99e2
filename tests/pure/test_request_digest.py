"""The digest a request key is bound to: frozen, and different for everything that decides results."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.jobs.request_digest import BOUND_CONSTRAINTS, request_digest

A, B = (hashlib.sha256(text).hexdigest() for text in (b"a", b"b"))
BASE: dict[str, Any] = {
    "operation": "embed.batch",
    "model_id": "minilm",
    "constraints": {"allow_equivalent": False, "accept_declared": False},
    "item_ids": ["x", "y"],
    "content_sha256": [A, B],
}
#: Whoever changes this unbinds every key of every store.
FROZEN = "3e95b6a1e569e8474fb7bb19ff7ee1fc9aa4e12e9359b996d50d6738e8d42bf1"


def test_the_digest_is_frozen() -> None:
    assert request_digest(**BASE) == FROZEN


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "rerank.score"},
        {"model_id": "minilm2"},
        {"constraints": {**BASE["constraints"], "required_fingerprint": "f"}},
        {"constraints": {**BASE["constraints"], "target_fingerprint": "f"}},
        {"constraints": {**BASE["constraints"], "allow_equivalent": True}},
        {"constraints": {**BASE["constraints"], "accept_declared": True}},
        {"constraints": {**BASE["constraints"], "required_epoch": 0}},
        {"item_ids": ["y", "x"]},
        {"item_ids": ["x", "z"]},
        {"content_sha256": [B, A]},
        {"item_ids": ["x"], "content_sha256": [A]},
        {"remote_profile_hash": "p"},
        {"logical_handle": "p"},
        {"remote_profile_hash": ""},
    ],
    ids=str,
)
def test_everything_that_decides_results_is_bound(change: dict[str, Any]) -> None:
    assert request_digest(**{**BASE, **change}) != request_digest(**BASE)


def test_time_limits_are_not_bound() -> None:
    constraints = {**BASE["constraints"], "deadline_ms": 5, "max_queue_ms": 7}
    assert request_digest(**{**BASE, "constraints": constraints}) == request_digest(**BASE)
    assert not {"deadline_ms", "max_queue_ms"} & set(BOUND_CONSTRAINTS)


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.lists(st.text(max_size=4), min_size=1, max_size=4))
def test_no_two_lists_of_ids_spell_the_same_bytes(one: list[str], other: list[str]) -> None:
    digests = [request_digest("o", "m", {}, ids, [A] * len(ids)) for ids in (one, other)]
    assert (digests[0] == digests[1]) is (one == other)
