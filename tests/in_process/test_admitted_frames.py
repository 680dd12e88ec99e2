"""No request the host admits can make a frame past the negotiated size, there or back, and all it admits is served.

The host's admission is ``Exchange.problem``; the answer comes from the worker's own loop over a socket pair. The
engine behind it is honest and as large as it can be: full-width vectors, all tokens asked for, long texts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from synapse_host.framing import FrameDecoder
from synapse_host.hookspecs import Generation, PluginError
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.reply_check import check_raw, check_reply
from synapse_host.testing.plain_plugin import PlainModel, PlainPlugin, hook_calls
from synapse_host.testing.workers.fake_engine import load_request
from synapse_host.testing.workers.running_worker import packed_ids
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.host_stream import SocketStream
from synapse_host.worker.main_loop import answer_request
from synapse_host.worker_protocol.codec import decode_request, decode_response
from synapse_host.worker_protocol.frame_budget import reply_bytes
from synapse_host.worker_protocol.messages import (
    SMALLEST_MAX_FRAME,
    AdmitShape,
    EmbedBatchRequest,
    Generate,
    Message,
    Ping,
    Rerank,
    RerankSequences,
)

#: Small, so that limits are met often, and so that a whole reply fits the buffers of a socket pair.
FRAMES = st.sampled_from([SMALLEST_MAX_FRAME, 5000, 9000, 20_000])
#: A request id may take this much: every character is twelve bytes of JSON.
REQ_IDS = st.sampled_from(["r", "\U0001f4a5" * 64])
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=200)


@dataclass
class Outputs:
    """How much the engine says in its next answer."""

    text: str = ""
    executables: int = 0
    refusal: str = ""


def engine(dims: int, says: Outputs) -> PlainPlugin:
    def embed(batch: Any, **_: Any) -> Any:
        return np.ones((len(batch.counts), dims), np.float32)

    def generate(prompt: Any, options: Any, **_: Any) -> Generation:
        if says.refusal:
            raise PluginError("inference_failed", says.refusal)
        ids = [2**31 - 1] * options["max_tokens"]
        return Generation(ids, "length", len(prompt), says.text)

    def admit(**_: Any) -> Any:
        programs = [{"id": f"program-{number}", "layers": [0]} for number in range(says.executables)]
        return {"executables": programs, "cpu_stages": []}

    return PlainPlugin(
        PlainModel(dims=dims, buckets=[16, 32]),
        synapse_embed=embed,
        synapse_rerank=lambda sequences, **_: np.ones(len(sequences), np.float32),
        synapse_rerank_pairs=lambda candidates, **_: np.ones(len(candidates), np.float32),
        synapse_generate=generate,
        synapse_admit_shape=admit,
        synapse_placement=lambda **_: 0.5,
    )


class BothEnds:
    """A worker's loop on one end of a socket pair and the host's judgement on the other."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, max_frame: int, plugin: PlainPlugin) -> None:
        self.max_frame = max_frame
        self._socket = ours
        self._connection = HostConnection(SocketStream(theirs), max_frame)
        self._calls = hook_calls(plugin, max_frame=max_frame)

    def load(self, request: Message) -> None:
        self._calls.answer(request, None)

    def ask(self, exchange: Exchange) -> tuple[Message, bytes | None]:
        """The reply as the host takes it; raises ``FrameTooLarge`` for a frame that is past the limit."""
        request = decode_request(exchange.payload)
        answer_request(self._connection, self._calls, request, None if exchange.raw is None else bytes(exchange.raw))
        decoder = FrameDecoder(self.max_frame)
        self._socket.setblocking(False)
        try:
            while True:
                decoder.feed(self._socket.recv(1 << 20))
        except BlockingIOError:
            pass
        header = decoder.next_frame()
        assert header is not None
        reply = decode_response(header)
        check_reply(request, reply, sent_bytes=exchange.raw_bytes, dims=exchange.dims)
        raw = decoder.next_frame() if reply.RAW else None
        check_raw(request, reply, raw)
        assert decoder.pending_bytes == 0
        return reply, raw

    def outcome(self, exchange: Exchange) -> Message | WorkerRefusal:
        """The control frame of the reply, or the refusal."""
        try:
            return self.ask(exchange)[0]
        except WorkerRefusal as refusal:
            return refusal


@contextmanager
def both_ends(max_frame: int, plugin: PlainPlugin) -> Iterator[BothEnds]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        yield BothEnds(ours, theirs, max_frame, plugin)


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@st.composite
def computing(draw: st.DrawFn) -> tuple[Message, bytes]:
    """A request for vectors, scores or text with the raw frame that belongs to it."""
    req_id, counts = draw(REQ_IDS), draw(COUNTS)
    rows = [[7] * count for count in counts]
    kind = draw(st.sampled_from([EmbedBatchRequest, Rerank, RerankSequences, Generate]))
    if kind is EmbedBatchRequest:
        ids = draw(st.sampled_from(["{}", "document {} of a caller with long names " + "x" * 60]))
        items = [{"id": ids.format(number), "n_tokens": count} for number, count in enumerate(counts)]
        return EmbedBatchRequest(req_id, "model-1", "mean", True, items), packed_ids(*rows)
    if kind is Rerank:
        empty = [{"n_tokens": 0}] * draw(st.integers(0, 300))
        candidates = [*({"n_tokens": count} for count in counts[1:]), *empty]
        return Rerank(req_id, "model-1", counts[0], candidates), packed_ids(*rows)
    if kind is RerankSequences:
        return RerankSequences(req_id, "model-1", [{"n_tokens": count} for count in counts]), packed_ids(*rows)
    return Generate(req_id, "model-1", draw(st.integers(1, 2500))), packed_ids(*rows)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(request_=computing(), max_frame=FRAMES, dims=st.integers(1, 2000), text=st.integers(0, 30_000))
def test_whatever_is_admitted_is_served_within_the_frames(
    request_: tuple[Message, bytes], max_frame: int, dims: int, text: int, model_files: Path
) -> None:
    message, raw = request_
    exchange = Exchange(message, raw, dims=dims)
    problem = exchange.problem(max_frame)
    event(f"{message.TYPE} {'admitted' if problem is None else 'refused'}")
    longest_sent = max(len(exchange.payload), len(raw))
    if longest_sent > max_frame:
        assert problem is not None
        assert f"{longest_sent} bytes" in problem
        return
    with both_ends(max_frame, engine(dims, Outputs("x" * text))) as ends:
        ends.load(load_request(model_files, operation=message.OPERATION))
        outcome = ends.outcome(exchange)
    if isinstance(outcome, WorkerRefusal):
        # The length of a text is the engine's alone; everything else the host can know before it asks.
        long_text = isinstance(message, Generate) and reply_bytes(message, None) + text > max_frame
        no_candidate = isinstance(message, Rerank) and not message.candidates
        assert problem is not None or long_text or no_candidate
        assert outcome.code == "invalid_request"
    else:
        assert outcome.to_wire()["req_id"] == message.to_wire()["req_id"]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    req_id=REQ_IDS,
    max_frame=FRAMES,
    executables=st.integers(0, 1500),
    refusal=st.sampled_from(["x", "\n", "\U0001f4a5"]).map(lambda character: character * 30_000),
)
def test_what_only_the_worker_can_measure_is_refused_by_the_worker(
    req_id: str, max_frame: int, executables: int, refusal: str, model_files: Path
) -> None:
    with both_ends(max_frame, engine(4, Outputs(executables=executables, refusal=refusal))) as ends:
        ends.load(load_request(model_files, operation="generate"))
        admitted = ends.outcome(Exchange(AdmitShape(req_id, "model-1", 128), None))
        if isinstance(admitted, WorkerRefusal):
            assert admitted.code == "invalid_request"
            assert executables * 40 > max_frame // 2
        with pytest.raises(WorkerRefusal, match=r"…$"):
            ends.ask(Exchange(Generate(req_id, "model-1", 1), packed_ids([1])))
        reply, _ = ends.ask(Exchange(Ping(req_id), None))
        assert reply.TYPE == "PONG"


TWO_ROWS = EmbedBatchRequest("r", "m", "mean", True, [{"id": "0", "n_tokens": 1}] * 2)


@pytest.mark.parametrize(
    ("message", "raw", "dims", "said"),
    [
        (EmbedBatchRequest("r", "m", "mean", True, [{"id": "0", "n_tokens": 1}] * 2), bytes(8), 512, None),
        (
            EmbedBatchRequest("r", "m", "mean", True, [{"id": "0", "n_tokens": 1}] * 2),
            bytes(8),
            513,
            "2 vectors of 513",
        ),
        (EmbedBatchRequest("r", "m", "mean", True, [{"id": "0", "n_tokens": 1}] * 2), bytes(8), None, None),
        (Rerank("r", "m", 1, [{"n_tokens": 1023}]), bytes(4096), None, None),
        (Rerank("r", "m", 1, [{"n_tokens": 1024}]), bytes(4100), None, "RERANK needs a frame of 4100 bytes"),
        (Generate("r", "m", 279), bytes(4), None, None),
        (Generate("r", "m", 280), bytes(4), None, "max_tokens 280"),
        (Generate("r", "m", 1), None, None, "GENERATE goes with a raw frame"),
        (Ping("r"), b"", None, "PING goes without a raw frame"),
        (Ping("r" * 65), None, None, "1 to 64 characters"),
        (Generate("r", "m", 2**32), bytes(4), None, "'max_tokens'"),
    ],
    ids=str,
)
def test_the_limit_is_met_to_the_byte(message: Message, raw: bytes | None, dims: int | None, said: str | None) -> None:
    problem = Exchange(message, raw, dims=dims).problem(4096)
    if said is None:
        assert problem is None
    else:
        assert problem is not None
        assert said in problem
