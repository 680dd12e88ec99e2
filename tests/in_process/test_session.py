from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import orjson
import pytest

from synapse_host.errors import InvalidRequest, QueueFull
from synapse_host.testing.fake_methods import (
    DIMS,
    Gate,
    echo_method,
    embedding_methods,
    failing_method,
    fake_vector,
    gate_method,
)
from synapse_host.testing.in_process_host import RunningHost, in_process_host
from synapse_host.testing.raw_peer import DEADLINE_S, RawPeer

pytestmark = pytest.mark.anyio

LIMITS = {
    "SYNAPSE_SERVER_MAX_IN_FLIGHT": "3",
    "SYNAPSE_SERVER_MAX_FRAME": "65536",
    "SYNAPSE_SERVER_INGRESS_BYTES": "70000",
}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def host(tmp_path: Path, gate: Gate) -> AsyncIterator[RunningHost]:
    methods = [
        echo_method(),
        gate_method(gate),
        failing_method(ZeroDivisionError("by nothing"), "fake.broken"),
        failing_method(InvalidRequest("no such item", details={"item_id": "a"}), "fake.semantic"),
        *embedding_methods(),
    ]
    async with in_process_host(tmp_path, methods, LIMITS) as running:
        yield running


@pytest.fixture
async def peer(host: RunningHost) -> RawPeer:
    return await host.peer()


async def test_request_is_answered_with_its_id(peer: RawPeer) -> None:
    answer = await peer.ask({"id": {"any": [1]}, "method": "fake.echo", "params": {"value": "hé"}})
    assert answer["id"] == {"any": [1]}
    assert answer["result"] == {"value": "hé", "flow_id": None, "peer_uid": os.getuid(), "module_generation": 7}


async def test_flow_reaches_the_handler(peer: RawPeer) -> None:
    answer = await peer.ask({"id": 1, "method": "fake.echo", "scope": {"flow_id": "f"}})
    assert answer["result"]["flow_id"] == "f"


async def test_answers_come_as_they_are_ready(peer: RawPeer, gate: Gate) -> None:
    await peer.send({"id": "slow", "method": "fake.gate", "params": {"value": 1}})
    assert (await peer.ask({"id": "fast", "method": "fake.echo"}))["id"] == "fast"
    gate.open.set()
    assert (await peer.receive())["id"] == "slow"


async def test_hello_tells_what_the_host_is(peer: RawPeer) -> None:
    hello = (await peer.ask({"hello": {"api": 1, "vectors": "f32"}}))["hello"]
    assert hello.pop("version")
    assert hello == {"api": 1, "module_generation": 7, "max_frame": 65536, "vectors": "f32"}


async def test_raw_vectors_follow_when_agreed_on(peer: RawPeer) -> None:
    await peer.ask({"hello": {"api": 1, "vectors": "f32"}})
    answer = await peer.ask({"id": 1, "method": "embed.query", "params": {"text": "hello"}})
    assert answer["result"]["raw"] == {"rows": 1, "dims": DIMS}
    assert "vector" not in answer["result"]["vectors"][0]
    assert await peer.receive_frame() == struct.pack(f"<{DIMS}f", *fake_vector("hello"))


async def test_vectors_are_json_numbers_without_a_hello(peer: RawPeer) -> None:
    answer = await peer.ask({"id": 1, "method": "embed.query", "params": {"text": "hello"}})
    assert answer["result"]["vectors"][0]["vector"] == list(fake_vector("hello"))
    assert "raw" not in answer["result"]


async def test_raw_frame_is_never_parted_from_its_reply(peer: RawPeer) -> None:
    await peer.ask({"hello": {"api": 1, "vectors": "f32"}})
    texts = [f"text {number}" for number in range(3)]
    for number, text in enumerate(texts):
        await peer.send({"id": number, "method": "embed.query", "params": {"text": text}})
    for _ in texts:
        answer = await peer.receive()
        raw = await peer.receive_frame()
        assert raw == struct.pack(f"<{DIMS}f", *fake_vector(texts[answer["id"]]))


@pytest.mark.parametrize(
    ("frame", "request_id", "words"),
    [
        (b"{nonsense", None, "not UTF-8 JSON"),
        (b'{"id": 1, "method": "fake.echo", "params": {"value": "\xff"}}', None, "not UTF-8 JSON"),
        (b'{"id": 1, "method": "fake.echo", "params": {"value": "\\ud800"}}', 1, "params.value holds a lone surrogate"),
        (b'{"id": 2, "method": "fake.echo", "params": {"other": 1}}', 2, "params.other"),
        (b'{"id": 3, "method": 4}', 3, "method is a number"),
    ],
)
async def test_connection_goes_on_after_a_malformed_request(
    peer: RawPeer, frame: bytes, request_id: object, words: str
) -> None:
    await peer.send_frame(frame)
    answer = await peer.receive()
    assert answer["id"] == request_id
    assert answer["error"]["code"] == "invalid_request"
    assert words in answer["error"]["message"]
    assert (await peer.ask({"id": 9, "method": "fake.echo"}))["id"] == 9


async def test_second_hello_is_refused(peer: RawPeer) -> None:
    await peer.ask({"id": 1, "method": "fake.echo"})
    answer = await peer.ask({"hello": {"api": 1, "vectors": "f32"}})
    assert "first frame" in answer["error"]["message"]
    assert (await peer.ask({"id": 9, "method": "fake.echo"}))["id"] == 9


async def test_semantic_refusal_rides_in_the_result(peer: RawPeer) -> None:
    answer = await peer.ask({"id": 1, "method": "fake.semantic"})
    assert answer["result"]["module_generation"] == 7
    assert answer["result"]["error"]["details"] == {"item_id": "a"}


async def test_fault_of_a_handler_is_a_typed_error_and_logged(peer: RawPeer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        answer = await peer.ask({"id": 1, "method": "fake.broken"})
    assert answer["error"]["code"] == "encode_failed"
    assert "fake.broken" in answer["error"]["message"]
    assert "by nothing" in answer["error"]["message"]
    assert (await peer.ask({"id": 2, "method": "fake.echo"}))["id"] == 2


async def test_requests_past_the_in_flight_limit_are_refused_by_id(peer: RawPeer, gate: Gate) -> None:
    for number in range(4):
        await peer.send({"id": number, "method": "fake.gate"})
    refused = await peer.receive()
    assert refused["id"] == 3
    assert refused["result"]["error"]["code"] == "queue_full"
    assert refused["result"]["error"]["retry_after_ms"] > 0
    gate.open.set()
    assert {(await peer.receive())["id"] for _ in range(3)} == {0, 1, 2}
    assert "result" in await peer.ask({"id": 5, "method": "fake.gate"})


async def test_oversized_frame_is_answered_then_the_connection_closes(peer: RawPeer) -> None:
    await peer.send_bytes(struct.pack("<I", 65537) + b"x")
    answer = await peer.receive()
    assert answer["id"] is None
    assert answer["error"]["code"] == "invalid_request"
    assert "65537" in answer["error"]["message"]
    assert "65536" in answer["error"]["message"]
    assert await peer.is_closed()


async def test_frame_of_exactly_the_limit_passes(peer: RawPeer) -> None:
    head, tail = b'{"id":1,"method":"fake.echo","params":{"value":"', b'"}}'
    await peer.send_frame(head + b"x" * (65536 - len(head) - len(tail)) + tail)
    answer = await peer.receive()
    # The echo does not fit a frame any more, which is told instead of sent.
    assert answer["error"]["code"] == "encode_failed"


async def test_half_received_frames_share_one_budget(host: RunningHost) -> None:
    first, second = await host.peer(), await host.peer()
    await first.send_bytes(struct.pack("<I", 60000) + b"x" * 40000)
    # Whichever the host reads last is refused.
    await second.send_bytes(struct.pack("<I", 60000) + b"x" * 40000)
    answer = await _either(first, second)
    assert answer["error"]["code"] == "queue_full"
    assert "70000" in answer["error"]["message"]
    third = await host.peer()
    assert (await third.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def _either(*peers: RawPeer) -> dict[str, dict[str, str]]:
    answers: list[dict[str, dict[str, str]]] = []
    async with anyio.create_task_group() as tasks:

        async def wait(peer: RawPeer) -> None:
            answers.append(await peer.receive())
            tasks.cancel_scope.cancel()

        for peer in peers:
            tasks.start_soon(wait, peer)
    return answers[0]


async def test_header_alone_reserves_no_memory(host: RunningHost) -> None:
    peers = [await host.peer() for _ in range(20)]
    for peer in peers:
        await peer.send_bytes(struct.pack("<I", 65536))
    other = await host.peer()
    assert (await other.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def test_peer_that_goes_away_cancels_its_waits_and_no_others(host: RunningHost, gate: Gate) -> None:
    leaving, staying = await host.peer(), await host.peer()
    await staying.send({"id": 1, "method": "fake.gate"})
    await leaving.send({"id": 1, "method": "fake.gate"})
    with anyio.fail_after(DEADLINE_S):
        while gate.entered < 2:
            await anyio.lowlevel.checkpoint()
        await leaving.close()
        while not gate.cancelled:
            await anyio.lowlevel.checkpoint()
    gate.open.set()
    assert (await staying.receive())["id"] == 1
    assert gate.cancelled == 1


async def test_peer_that_leaves_half_a_frame_harms_nobody(host: RunningHost) -> None:
    leaving = await host.peer()
    await leaving.send_bytes(struct.pack("<I", 1000) + b"half")
    await leaving.close()
    other = await host.peer()
    assert (await other.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def test_half_a_frame_that_stands_still_ends_its_connection(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()], {"SYNAPSE_SERVER_STALL_S": "0.05"}) as host:
        stalled, idle = await host.peer(), await host.peer()
        await stalled.send_bytes(struct.pack("<I", 1000) + b"half")
        answer = await stalled.receive()
        assert "stood still" in answer["error"]["message"]
        assert await stalled.is_closed()
        assert (await idle.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def test_peer_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()], {"SYNAPSE_SERVER_STALL_S": "0.05"}) as host:
        deaf, other = await host.peer(), await host.peer()
        await deaf.send({"id": 1, "method": "fake.echo", "params": {"value": "x" * 4_000_000}})
        await _send_until_broken(deaf)
        assert (await other.ask({"id": 1, "method": "fake.echo"}))["id"] == 1


async def _send_until_broken(peer: RawPeer) -> None:
    with anyio.fail_after(DEADLINE_S):
        try:
            while True:
                await peer.send({"id": 2, "method": "fake.echo"})
        except anyio.BrokenResourceError:
            return


async def test_reply_larger_than_the_socket_buffer_arrives_whole(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()]) as host:
        peer = await host.peer()
        value = "y" * 5_000_000
        assert (await peer.ask({"id": 1, "method": "fake.echo", "params": {"value": value}}))["result"][
            "value"
        ] == value


async def test_stop_answers_what_was_admitted_and_refuses_the_rest(tmp_path: Path) -> None:
    gate = Gate()
    async with in_process_host(tmp_path, [gate_method(gate), echo_method()]) as host:
        peer = await host.peer()
        await peer.send({"id": "admitted", "method": "fake.gate", "params": {"value": 5}})
        await gate.came.wait()
        host.stop.set()
        with anyio.fail_after(DEADLINE_S):
            while host.socket.exists():
                await anyio.lowlevel.checkpoint()
        refused = await peer.ask({"id": "late", "method": "fake.echo"})
        assert refused["result"]["error"]["code"] == QueueFull.code
        assert "stopping" in refused["result"]["error"]["message"]
        assert not host.stopped.is_set()
        gate.open.set()
        answer = await peer.receive()
        assert (answer["id"], answer["result"]["value"]) == ("admitted", 5)
        assert await peer.is_closed()
        with anyio.fail_after(DEADLINE_S):
            await host.stopped.wait()


async def test_stop_does_not_wait_longer_than_the_drain_limit(tmp_path: Path) -> None:
    gate = Gate()
    async with in_process_host(tmp_path, [gate_method(gate)], {"SYNAPSE_SERVER_DRAIN_S": "0.05"}) as host:
        peer = await host.peer()
        await peer.send({"id": 1, "method": "fake.gate"})
        await gate.came.wait()
        host.stop.set()
        assert await peer.is_closed()
        with anyio.fail_after(DEADLINE_S):
            await host.stopped.wait()
    assert gate.cancelled == 1


async def test_a_stop_waits_for_nobody_who_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    environment = {"SYNAPSE_SERVER_DRAIN_S": "60", "SYNAPSE_SERVER_MAX_IN_FLIGHT": "2"}
    async with in_process_host(tmp_path, [gate_method(gate)], environment) as host:
        with socket.socket(socket.AF_UNIX) as vanishing:
            vanishing.connect(str(host.socket))
            payload = orjson.dumps({"id": 1, "method": "fake.gate"})
            # One more than may be unanswered: its refusal meets the end before a task of the others has begun.
            vanishing.sendall((struct.pack("<I", len(payload)) + payload) * 3)
        # Whoever connects later is served later.
        assert (await (await host.peer()).ask({"id": 2, "method": "fake.nothing"}))["id"] == 2
        host.stop.set()
        with anyio.fail_after(DEADLINE_S):
            await host.stopped.wait()
    assert "unfinished" not in caplog.text


async def test_idle_host_stops_at_once(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method()]) as host:
        peer = await host.peer()
        assert orjson.dumps(await peer.ask({"id": 1, "method": "fake.echo"}))
        host.stop.set()
        assert await peer.is_closed()
