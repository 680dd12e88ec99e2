from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.replies import EmbedReply, merge_replies, read_embed_reply
from synapse_host.testing.fake_methods import DIMS, FINGERPRINT, fake_embedding, fake_vector

PAIRS = [("a", "first"), ("b", "second text"), ("c", "")]
IDS, TEXTS = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]


def _received(pairs: list[tuple[str, str]] = PAIRS) -> Received:
    reply = fake_embedding(pairs)
    assert reply.vectors is not None
    payload = {**reply.payload, "raw": {"rows": len(pairs), "dims": DIMS}}
    return Received(payload, bytearray(reply.vectors.data))


def _read(received: Received) -> EmbedReply:
    return read_embed_reply("embed.batch", received, IDS, TEXTS)


def test_reply_carries_vectors_and_identity() -> None:
    reply = _read(_received())
    assert reply.vectors.shape == (3, DIMS)
    assert reply.vectors.dtype == np.float32
    assert reply.vectors[1].tolist() == list(fake_vector("second text"))
    assert (reply.fingerprint, reply.table_epoch, reply.module_generation) == (FINGERPRINT, 3, 7)
    assert reply.real_token_counts == (1, 2, 0)
    assert reply.by_id()["c"].tolist() == list(fake_vector(""))


def test_reply_in_another_order_is_put_in_ours() -> None:
    reply = _read(_received([PAIRS[2], PAIRS[0], PAIRS[1]]))
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in TEXTS]
    assert reply.real_token_counts == (1, 2, 0)
    assert [told.submitted_tokens for told in reply.truncations] == [1, 2, 0]


def test_json_vectors_read_the_same() -> None:
    received = _received()
    for item, text in zip(received.payload["vectors"], TEXTS, strict=True):
        item["vector"] = list(fake_vector(text))
    del received.payload["raw"]
    assert _read(Received(received.payload)).vectors.tolist() == [list(fake_vector(text)) for text in TEXTS]


def _other_digest(payload: dict[str, Any]) -> None:
    payload["vectors"][1]["submitted_sha256"] = "0" * 64


def _lost_item(payload: dict[str, Any]) -> None:
    payload["vectors"][1]["id"] = "zz"


def _doubled_item(payload: dict[str, Any]) -> None:
    payload["vectors"].append(payload["vectors"][0])


def _no_fingerprint(payload: dict[str, Any]) -> None:
    del payload["fingerprint"]


def _job_instead(payload: dict[str, Any]) -> None:
    payload.clear()
    payload["job_id"] = "job-1"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_digest, "item 'b'"),
        (_lost_item, "missing: ['b']"),
        (_doubled_item, "answered 4"),
        (_no_fingerprint, "fingerprint"),
        (_job_instead, "job_id"),
    ],
)
def test_reply_that_does_not_fit_is_refused(spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    received = _received()
    spoil(received.payload)
    with pytest.raises(ReplyMismatch) as caught:
        _read(received)
    assert words in str(caught.value)


def test_merged_reply_is_in_the_order_of_the_whole() -> None:
    texts = ["zero", "one one", "two"]
    late = read_embed_reply("m", _received([("1", texts[1])]), ["1"], [texts[1]])
    early = read_embed_reply("m", _received([("2", texts[2]), ("0", texts[0])]), ["2", "0"], [texts[2], texts[0]])
    merged = merge_replies([((2, 0), early), ((1,), late)], ["0", "1", "2"])
    assert merged.vectors.tolist() == [list(fake_vector(text)) for text in texts]
    assert merged.real_token_counts == (1, 2, 1)


def test_replies_of_two_identities_are_never_merged() -> None:
    first = _received([("0", "x")])
    second = _received([("1", "y")])
    second.payload["fingerprint"] = "e" * 64
    parts = [((0,), read_embed_reply("m", first, ["0"], ["x"])), ((1,), read_embed_reply("m", second, ["1"], ["y"]))]
    with pytest.raises(ReplyMismatch, match="fingerprint changed"):
        merge_replies(parts, ["0", "1"])
