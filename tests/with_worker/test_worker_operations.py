"""Every operation through a real child: the stub, and the worker program with an engine that has every hook."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synapse_host.errors import InvalidRequest
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.workers.fake_engine import FAKE_ENGINE, load_request
from synapse_host.testing.workers.full_engine import FULL_TRICKS, full_engine
from synapse_host.testing.workers.running_worker import (
    PATIENCE_S,
    embed,
    generate,
    load,
    misbehaving_spec,
    packed_ids,
    rerank,
    rerank_sequences,
    running,
    stub_spec,
)
from synapse_host.testing.workers.stub_answers import stub_pair, stub_score, stub_tokens
from synapse_host.worker_protocol.messages import (
    AdmitShape,
    Admitted,
    EmbedBatchRequest,
    Evicted,
    EvictShape,
    Generate,
    Loaded,
    Message,
    PackedAdmit,
    PackedEvict,
    Ping,
    Pong,
    Rerank,
    RerankSequences,
    Text,
)

pytestmark = pytest.mark.anyio

TOKEN = {trick: token for token, trick in FULL_TRICKS.items()}
#: Token ids that spell a request: left in the stream they would be taken for the next one.
BAIT = json.dumps({"type": "PING", "req_id": "bait"}).encode().ljust(64)


def real_spec(folder: Path, source: str) -> WorkerSpec:
    site = folder / "site"
    site.mkdir()
    install_backend(site, "fake", source)
    return WorkerSpec(
        "fake",
        "synapse-fake-engine-m",
        folder / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
        extra_env={"PYTHONPATH": str(site)},
    )


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    return real_spec(tmp_path, full_engine())


async def load_for(worker: Worker, folder: Path, operation: str) -> str:
    reply, _ = await worker.request(load_request(folder, operation=operation))
    assert isinstance(reply, Loaded)
    return reply.model_ref


async def refusal_of(worker: Worker, message: Message, raw: bytes | None = None) -> WorkerRefusal:
    with pytest.raises(WorkerRefusal) as refused:
        await worker.request(message, raw)
    return refused.value


async def test_the_stub_answers_every_operation(tmp_path: Path) -> None:
    async with running(stub_spec(tmp_path)) as worker:
        assert worker.hello.packed == {"widths": [256], "max_rows": 8}
        ref = await load(worker)
        query, documents = [1, 2], ([3], [], [4, 5, 6])
        scores = await rerank(worker, ref, query, *documents)
        assert scores == [stub_score(stub_pair(query, list(document))) for document in documents]
        assert await rerank_sequences(worker, ref, [7], [8, 9]) == [stub_score([7]), stub_score([8, 9])]
        tokens = stub_tokens([5, 6], 4)
        text = await generate(worker, ref, [5, 6], 4)
        assert text == Text("generate-1", " ".join(map(str, tokens)), 2, 4, "length", tokens)
        assert isinstance(await reply_to(worker, AdmitShape("a", ref, 128)), Admitted)
        assert isinstance(await reply_to(worker, PackedAdmit("a", ref, 256)), Admitted)
        assert await reply_to(worker, EvictShape("e", ref, 128)) == Evicted("e")
        assert await reply_to(worker, PackedEvict("e", ref, 256)) == Evicted("e")
        assert (await refusal_of(worker, EvictShape("e", ref, 128))).code == "shape_not_admitted"


async def reply_to(worker: Worker, message: Message) -> Message:
    reply, raw = await worker.request(message)
    assert raw is None
    return reply


async def test_a_real_worker_reranks_both_ways(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        ref = await load_for(worker, tmp_path, "rerank")
        assert await rerank_sequences(worker, ref, [1, 2], [8]) == [0.375, 1.0]
        assert await rerank(worker, ref, [10], [], [1, 2]) == [15 / 8, 18 / 8]


async def test_a_real_worker_generates(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        ref = await load_for(worker, tmp_path, "generate")
        text = await generate(worker, ref, [2, 3], 2)
        assert text == Text("generate-1", "{'max_tokens': 2}", 2, 2, "stop", [5, 6])


async def test_a_real_worker_admits_reports_and_evicts(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        assert worker.hello.packed == {"widths": [256, 930], "max_rows": 8}
        ref = await load_for(worker, tmp_path, "embed")
        admitted = await reply_to(worker, AdmitShape("a-1", ref, 128))
        program = {"id": "program-128", "layers": [0, 1]}
        assert admitted == Admitted("a-1", {"executables": [program], "cpu_stages": ["tokenize", "pool"]})
        assert isinstance(await reply_to(worker, PackedAdmit("a-2", ref, 256)), Admitted)
        pong = await reply_to(worker, Ping("p"))
        assert isinstance(pong, Pong)
        assert (pong.placement_share, pong.buckets) == (0.75, [16, 32])
        assert pong.ane_resident_shapes == {ref: [128]}
        assert await reply_to(worker, EvictShape("e-1", ref, 128)) == Evicted("e-1")
        assert await reply_to(worker, PackedEvict("e-2", ref, 256)) == Evicted("e-2")
        pong = await reply_to(worker, Ping("p"))
        assert isinstance(pong, Pong)
        assert pong.ane_resident_shapes == {ref: []}


@pytest.mark.parametrize("grammar", [True, False])
async def test_a_grammar_is_obeyed_or_refused_and_never_ignored(grammar: bool, tmp_path: Path) -> None:
    async with running(real_spec(tmp_path, full_engine(grammar=grammar))) as worker:
        ref = await load_for(worker, tmp_path, "generate")
        if grammar:
            text = await generate(worker, ref, [1], 1, 'root ::= "a"')
            assert text.text == "{'max_tokens': 1, 'grammar': 'root ::= \"a\"'}"
        else:
            refused = await refusal_of(worker, Generate("g", ref, 1, 'root ::= "a"'), BAIT)
            assert (refused.code, "grammar" in refused.message) == ("unsupported_request", True)
        assert (await generate(worker, ref, [1], 1, "")).text == "{'max_tokens': 1}"


#: Trick -> the request it is for, and what the refusal says.
RERANK_TRICKS = {
    "NaN in the last score": ("non_finite_output", 'item "1": '),
    "one score too few": ("inference_failed", "float32 [1], expected is float32 [2]"),
    "scores as float64": ("inference_failed", "float64"),
    "a code of its own": ("inference_failed", "out_of_luck: no luck today"),
    "a long refusal": ("inference_failed", "\U0001f4a5"),
}
GENERATE_TRICKS = {
    "one token too many": ("inference_failed", "made 4 tokens"),
    "half a character": ("inference_failed", "surrogates"),
    "a wrong prompt count": ("inference_failed", "counts 2 prompt tokens of 1"),
    "no Generation": ("inference_failed", "returned a str"),
    "an unknown finish reason": ("inference_failed", "'exhausted'"),
}
ADMIT_TRICKS = {
    "no inventory": ("inference_failed", "no inventory"),
    "a layer that is no u32": ("inference_failed", "-1"),
}


async def test_every_failed_rerank_is_refused_typed_and_the_worker_serves_on(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        ref = await load_for(worker, tmp_path, "rerank")
        for trick, (code, said) in RERANK_TRICKS.items():
            rows = ([TOKEN[trick]], [1])
            for message, raw in (
                (RerankSequences("s", ref, [{"n_tokens": 1}] * 2), packed_ids(*rows)),
                (Rerank("p", ref, 1, [{"n_tokens": 1}] * 2), packed_ids([5], *rows)),
            ):
                refused = await refusal_of(worker, message, raw)
                assert (refused.code, said in refused.message) == (code, True), (trick, refused.message)
        assert len(await rerank(worker, ref, [1], [2], [3])) == 2


async def test_every_failed_generation_is_refused_typed_and_the_worker_serves_on(
    spec: WorkerSpec, tmp_path: Path
) -> None:
    async with running(spec) as worker:
        ref = await load_for(worker, tmp_path, "generate")
        for trick, (code, said) in GENERATE_TRICKS.items():
            refused = await refusal_of(worker, Generate("g", ref, 3), packed_ids([TOKEN[trick]]))
            assert (refused.code, said in refused.message) == (code, True), (trick, refused.message)
        assert (await generate(worker, ref, [1], 1)).n_gen == 1


async def test_every_failed_admission_is_refused_typed_and_the_worker_serves_on(
    spec: WorkerSpec, tmp_path: Path
) -> None:
    async with running(spec) as worker:
        ref = await load_for(worker, tmp_path, "embed")
        for trick, (code, said) in ADMIT_TRICKS.items():
            refused = await refusal_of(worker, AdmitShape("a", ref, TOKEN[trick]))
            assert (refused.code, said in refused.message) == (code, True), (trick, refused.message)
        stubborn = TOKEN["does not give up what was compiled"]
        for admission, eviction in (
            (AdmitShape("a", ref, stubborn), EvictShape("e", ref, stubborn)),
            (PackedAdmit("a", ref, stubborn), PackedEvict("e", ref, stubborn)),
        ):
            await worker.request(admission)
            assert (await refusal_of(worker, eviction)).code == "inference_failed"
        assert len(await embed(worker, ref, [1])) == 1


async def test_an_operation_without_its_hook_is_refused_by_type_with_its_raw_frame_drained(tmp_path: Path) -> None:
    """The engine embeds and nothing else, and the token ids are bait."""
    async with running(real_spec(tmp_path, FAKE_ENGINE)) as worker:
        ref = await load_for(worker, tmp_path, "embed")
        for message, raw in (
            (Rerank("r", ref, 8, [{"n_tokens": 8}]), BAIT),
            (RerankSequences("r", ref, [{"n_tokens": 16}]), BAIT),
            (Generate("r", ref, 4), BAIT),
            (AdmitShape("r", ref, 128), None),
            (EvictShape("r", ref, 128), None),
            (PackedAdmit("r", ref, 256), None),
            (PackedEvict("r", ref, 256), None),
        ):
            refused = await refusal_of(worker, message, raw)
            assert refused.code == "unsupported_request"
            assert refused.message == f"backend 'fake' does not answer {message.TYPE}"
        assert len(await embed(worker, ref, [1])) == 1


async def test_every_refusal_drains_the_raw_frame_of_its_request(spec: WorkerSpec, tmp_path: Path) -> None:
    async with running(spec) as worker:
        embedding = await load_for(worker, tmp_path, "embed")
        reranking = await load_for(worker, tmp_path, "rerank")
        generating = await load_for(worker, tmp_path, "generate")
        refused: list[tuple[Any, str]] = [
            (EmbedBatchRequest("r", "none", "mean", True, [{"id": "a", "n_tokens": 16}]), "model_not_loaded"),
            (Rerank("r", "none", 8, [{"n_tokens": 8}]), "model_not_loaded"),
            (Rerank("r", embedding, 8, [{"n_tokens": 8}]), "operation_mismatch"),
            (Rerank("r", reranking, 8, [{"n_tokens": 9}]), "invalid_request"),
            (Rerank("r", reranking, 16, []), "invalid_request"),
            (RerankSequences("r", "none", [{"n_tokens": 16}]), "model_not_loaded"),
            (RerankSequences("r", generating, [{"n_tokens": 16}]), "operation_mismatch"),
            (RerankSequences("r", reranking, [{"n_tokens": 15}]), "invalid_request"),
            (RerankSequences("r", reranking, []), "invalid_request"),
            (Generate("r", "none", 4), "model_not_loaded"),
            (Generate("r", reranking, 4), "operation_mismatch"),
            (Generate("r", generating, 0), "invalid_request"),
            (Generate("r", generating, 4, "root ::= [a]"), "unsupported_request"),
        ]
        for message, code in refused:
            assert (await refusal_of(worker, message, BAIT)).code == code, message
        assert (await reply_to(worker, Ping("ping-1"))).to_wire()["req_id"] == "ping-1"


async def test_a_small_frame_is_never_passed_by_either_side(tmp_path: Path) -> None:
    spec = replace(real_spec(tmp_path, full_engine()), max_frame=4096)
    async with running(spec) as worker:
        assert worker.max_frame == 4096
        ref = await load_for(worker, tmp_path, "generate")
        with pytest.raises(InvalidRequest, match=r"max_tokens 300.*4324 bytes.*4096"):
            await generate(worker, ref, [1], 300)
        long_text = await refusal_of(worker, Generate("g", ref, 3), packed_ids([TOKEN["a long text"]]))
        assert (long_text.code, "GENERATE does not fit" in long_text.message) == ("invalid_request", True)
        reranking = await load_for(worker, tmp_path, "rerank")
        long = RerankSequences("s", reranking, [{"n_tokens": 1}])
        refused = await refusal_of(worker, long, packed_ids([TOKEN["a long refusal"]]))
        assert (refused.code, refused.message[-1]) == ("inference_failed", "…")
        assert (await generate(worker, ref, [1], 2)).n_gen == 2


@pytest.mark.parametrize("kind", ["small_frames", "refuses"])
async def test_what_the_worker_could_not_read_is_never_sent(tmp_path: Path, kind: str) -> None:
    async with running(misbehaving_spec(tmp_path, kind)) as worker:
        ref = await load(worker)
        for message, raw, said in (
            (Generate("g", ref, 2**32), b"", "'max_tokens'"),
            (Generate("g" * 65, ref, 1), b"", "'req_id'"),
            (Generate("g", ref, 1), None, "with a raw frame"),
            (Ping("p"), b"", "without a raw frame"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await worker.request(message, raw)
        with pytest.raises(ValueError, match="operation 'ping', not 'load'"):
            await worker.request(Ping("p"), operation="load")
        assert isinstance(await reply_to(worker, Ping("p")), Pong)
