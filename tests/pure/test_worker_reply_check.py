"""Which reply may answer which request, and with which counts."""

from __future__ import annotations

from itertools import product

import pytest

from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.reply_check import REPLIES, check_raw, check_reply
from synapse_host.testing.fuzz.message_strategies import sample_of
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import (
    REQUESTS,
    RESPONSES,
    EmbedBatchRequest,
    Err,
    Generate,
    Message,
    ProgressReport,
    Rerank,
    RerankSequences,
    Scores,
    SelfCheck,
    SelfChecked,
    Shutdown,
    Text,
    VectorsHeader,
)

EMBED = EmbedBatchRequest("r", "m", "mean", True, [{"id": str(n), "n_tokens": 1} for n in range(3)])
RERANK = Rerank("r", "m", 2, [{"n_tokens": 0}, {"n_tokens": 4}])
SEQUENCES = RerankSequences("r", "m", [{"n_tokens": 3}, {"n_tokens": 4}])
GENERATE = Generate("r", "m", 4)
ENDINGS = [kind for kind in RESPONSES.values() if kind not in (ProgressReport, Err)]


def judge(request: Message, reply: Message, *, sent: int = 12, dims: int | None = None) -> None:
    check_reply(request, reply, sent_bytes=sent, dims=dims)


def test_every_request_but_shutdown_has_its_one_reply() -> None:
    assert set(REPLIES) == set(REQUESTS.values()) - {Shutdown}
    assert set(REPLIES.values()) == set(ENDINGS)


@pytest.mark.parametrize(("request_kind", "reply_kind"), [*product(REPLIES, ENDINGS)], ids=lambda kind: kind.TYPE)
def test_any_other_reply_is_a_fault(request_kind: type[Message], reply_kind: type[Message]) -> None:
    request, reply = sample_of(request_kind), sample_of(reply_kind)
    if REPLIES[request_kind] is not reply_kind:
        with pytest.raises(ProtocolFault, match=rf"{reply.TYPE} answers {request.TYPE}, which \w+ answers"):
            judge(request, reply)
    elif reply_kind not in (VectorsHeader, Text):
        judge(request, reply)


@pytest.mark.parametrize("request_kind", REPLIES, ids=lambda kind: kind.TYPE)
def test_a_refusal_may_answer_any_request_and_only_the_one_in_flight(request_kind: type[Message]) -> None:
    request = sample_of(request_kind)
    with pytest.raises(WorkerRefusal) as refused:
        judge(request, Err("oom", "no room", "r-1"))
    assert (refused.value.code, refused.value.message) == ("oom", "no room")
    with pytest.raises(ProtocolFault, match="'r-0'"):
        judge(request, Err("oom", "no room", "r-0"))
    with pytest.raises(ProtocolFault, match="could not read"):
        judge(request, Err("invalid_request", "unreadable"))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (VectorsHeader("r", 4, 2), "2 rows for a batch of 3"),
        (VectorsHeader("r", 4, 4), "4 rows for a batch of 3"),
        (VectorsHeader("r", 5, 3), "5 dims and LOADED said 4"),
    ],
)
def test_vectors_have_the_rows_asked_and_the_width_loaded(reply: VectorsHeader, said: str) -> None:
    judge(EMBED, VectorsHeader("r", 4, 3), dims=4)
    with pytest.raises(ProtocolFault, match=said):
        judge(EMBED, reply, dims=4)


def test_without_a_load_of_ours_the_width_is_the_workers_word() -> None:
    judge(EMBED, VectorsHeader("r", 5, 3), dims=None)


@pytest.mark.parametrize(
    "reply",
    [
        Text("r", "abc", 3, 4, "length", [1, 2, 3, 4]),
        Text("r", "", 3, 0, "stop"),
        Text("r", "", 3, 0, "stop", []),
    ],
    ids=["all", "nothing", "an empty list"],
)
def test_a_text_whose_counts_agree_is_lawful(reply: Text) -> None:
    judge(GENERATE, reply)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Text("r", "", 2, 0, "stop"), "2 prompt tokens and 3 were sent"),
        (Text("r", "", 3, 5, "stop", [1, 2, 3, 4, 5]), "5 generated tokens and at most 4"),
        (Text("r", "", 3, 2, "stop", [1]), "2 generated tokens and gives 1 ids"),
        (Text("r", "", 3, 2, "stop"), "2 generated tokens and gives 0 ids"),
        (Text("r", "", 3, 0, "stop", [7]), "0 generated tokens and gives 1 ids"),
        (Text("r", "a\ud83d", 3, 0, "stop"), "surrogate"),
    ],
)
def test_a_text_whose_counts_disagree_is_a_fault(reply: Text, said: str) -> None:
    with pytest.raises(ProtocolFault, match=said):
        judge(GENERATE, reply)


@pytest.mark.parametrize(("request_", "count"), [(RERANK, 2), (SEQUENCES, 2)], ids=["RERANK", "RERANK_SEQUENCES"])
def test_there_is_one_score_per_candidate_and_the_query_has_none(request_: Message, count: int) -> None:
    check_raw(request_, Scores("r"), bytes(4 * count))
    for raw in (bytes(4 * count - 1), bytes(4 * count + 4), b"", None):
        with pytest.raises(ProtocolFault, match=rf"has {len(raw or b'')} bytes; {count} candidates take {4 * count}"):
            check_raw(request_, Scores("r"), raw)


def test_vectors_have_the_bytes_their_header_says() -> None:
    check_raw(EMBED, VectorsHeader("r", 4, 3), bytes(48))
    for size in (44, 47, 52):
        with pytest.raises(ProtocolFault, match=f"has {size} bytes; 3 rows of 4 dims take 48"):
            check_raw(EMBED, VectorsHeader("r", 4, 3), bytes(size))


def test_the_frame_of_a_self_check_has_what_its_checks_announce() -> None:
    sizes = {"rows": 2, "width": 3, "scale": 1.0}
    check = {"kind": "vectors", "subject": "bert", "label": "a", "fault": "", **sizes}
    reply = SelfChecked("r", [check, check | {"rows": 1}])
    check_raw(SelfCheck("r", "m"), reply, bytes(36))
    for wrong in (None, bytes(32), bytes(40)):
        with pytest.raises(ProtocolFault, match="its checks take 36"):
            check_raw(SelfCheck("r", "m"), reply, wrong)
