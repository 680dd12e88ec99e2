from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from synapse_host.client.async_client import AsyncClient
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import ConnectionLost, HostUnreachable, ReplyMismatch
from synapse_host.errors import (
    DeadlineExceeded,
    EngineCrashed,
    FlowScopeRefused,
    InvalidRequest,
    QueueFull,
    SynapseError,
    UnknownMethod,
)
from synapse_host.operations.registry import Method, RawVectors, Reply, RequestContext
from synapse_host.testing.fake_methods import (
    AnyParams,
    Gate,
    ItemsParams,
    echo_method,
    embedding_methods,
    failing_method,
    fake_embedding,
    fake_vector,
    gate_method,
    refusing_first,
)
from synapse_host.testing.in_process_host import RunningHost, in_process_host
from synapse_host.testing.raw_peer import DEADLINE_S

pytestmark = pytest.mark.anyio
Answer = TypeVar("Answer")


class JobParams(BaseModel):
    model_config = ConfigDict(extra="forbid")
    job_id: str


def _job(method: str, states: list[dict[str, Any]]) -> Method:
    """A job that is one state further at each poll."""
    left = list(states)

    async def status(params: JobParams, context: RequestContext) -> Reply:
        return Reply(dict(left.pop(0) if len(left) > 1 else left[0]))

    return Method(method, "query", JobParams, status)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def host(tmp_path: Path, gate: Gate) -> AsyncIterator[RunningHost]:
    methods = [
        echo_method(),
        gate_method(gate),
        failing_method(EngineCrashed("worker gone", details={"worker_id": "w"}), "fake.crash"),
        refusing_first(2, QueueFull("busy", retry_after_ms=1)),
        refusing_first(1, DeadlineExceeded("late"), "fake.late"),
        refusing_first(1, EngineCrashed("NaN", error_class="permanent"), "fake.overflow"),
        _job("model.status", [{"state": "loading"}, {"state": "loading"}, {"state": "ready", "model_id": "m"}]),
        _job(
            "probe.status", [{"state": "running"}, {"state": "failed_permanent", "error": EngineCrashed("x").to_wire()}]
        ),
        *embedding_methods(),
    ]
    async with in_process_host(tmp_path, methods) as running:
        yield running


@pytest.fixture
async def client(host: RunningHost) -> AsyncIterator[AsyncClient]:
    async with await AsyncClient.connect(host.socket) as client:
        yield client


async def _blocking(host: RunningHost, work: Callable[[Client], Answer]) -> Answer:
    def run() -> Answer:
        with Client.connect(host.socket) as client:
            return work(client)

    with anyio.fail_after(DEADLINE_S):
        return await anyio.to_thread.run_sync(run)


async def test_client_knows_the_host(client: AsyncClient) -> None:
    assert client.host.module_generation == 7
    assert client.host.vectors == "f32"


async def test_embed_query_gives_float32_rows(client: AsyncClient) -> None:
    reply = await client.embed_query("m", "hello")
    assert reply.vectors.tolist() == [list(fake_vector("hello"))]
    assert reply.vectors.dtype == np.float32
    assert reply.ids == ("query",)


async def test_embed_batch_takes_texts_and_pairs(client: AsyncClient) -> None:
    reply = await client.embed_batch("m", ["zero", ("b", "one")])
    assert reply.ids == ("0", "b")
    assert reply.vectors.tolist() == [list(fake_vector("zero")), list(fake_vector("one"))]


async def test_call_by_name_fills_vectors_in(client: AsyncClient) -> None:
    result = await client.call("embed.query", {"text": "hi"})
    assert result["vectors"][0]["vector"].tolist() == list(fake_vector("hi"))
    assert "raw" not in result


async def test_flow_travels(client: AsyncClient) -> None:
    assert (await client.call("fake.echo", flow_id="f"))["flow_id"] == "f"
    with pytest.raises(FlowScopeRefused):
        await client.call("cache.gc", flow_id="f")


async def test_one_exception_per_code_with_its_details(client: AsyncClient) -> None:
    with pytest.raises(UnknownMethod):
        await client.call("no.such")
    with pytest.raises(EngineCrashed) as caught:
        await client.call("fake.crash")
    assert caught.value.details == {"worker_id": "w"}
    assert caught.value.retry_after_ms == 250


async def test_transient_refusal_is_raised_unless_retries_are_asked_for(client: AsyncClient) -> None:
    with pytest.raises(QueueFull):
        await client.call("fake.flaky")
    assert (await client.call("fake.flaky", retries=1))["calls"] == 3


async def test_refusal_that_is_not_safe_to_retry_is_never_retried(client: AsyncClient) -> None:
    with pytest.raises(DeadlineExceeded):
        await client.call("fake.late", retries=5)


async def test_a_vector_that_is_none_is_asked_for_once(client: AsyncClient) -> None:
    with pytest.raises(EngineCrashed) as caught:
        await client.call("fake.overflow", retries=5)
    refusal = caught.value
    assert (refusal.error_class, refusal.safe_to_retry, refusal.retry_after_ms) == ("permanent", False, None)
    # The second call is the second the host ever saw, and the one it answers.
    assert (await client.call("fake.overflow", retries=5))["calls"] == 2


async def test_hundreds_of_calls_share_a_connection(client: AsyncClient) -> None:
    got: dict[int, Any] = {}

    async def ask(number: int) -> None:
        got[number] = (await client.embed_query("m", f"text {number}")).vectors[0].tolist()

    for _ in range(8):
        async with anyio.create_task_group() as tasks:
            for number in range(len(got), len(got) + 50):
                tasks.start_soon(ask, number)
    assert got == {number: list(fake_vector(f"text {number}")) for number in range(400)}


async def test_cancelled_call_leaves_the_others_their_answers(client: AsyncClient, gate: Gate) -> None:
    async def cancelled_call() -> None:
        with anyio.CancelScope() as scope:
            tasks.start_soon(cancel_when_sent, scope)
            await client.call("fake.gate", {"value": "cancelled"})

    async def cancel_when_sent(scope: anyio.CancelScope) -> None:
        await gate.came.wait()
        scope.cancel()

    answers = []

    async def patient(number: int) -> None:
        await gate.came.wait()
        answers.append((await client.call("fake.echo", {"value": number}))["value"])

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancelled_call)
            for number in range(5):
                tasks.start_soon(patient, number)
        gate.open.set()
        assert (await client.call("fake.echo", {"value": "after"}))["value"] == "after"
    assert sorted(answers) == [0, 1, 2, 3, 4]


async def test_reader_that_finishes_hands_the_reading_on(client: AsyncClient, gate: Gate) -> None:
    slow: list[Any] = []

    async def wait_at_gate(number: int) -> None:
        slow.append((await client.call("fake.gate", {"value": number}))["value"])

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait_at_gate, number)
            await gate.came.wait()
            await client.call("fake.echo")
            gate.open.set()
    assert sorted(slow) == [0, 1, 2]


async def test_stop_of_the_host_ends_every_wait(tmp_path: Path) -> None:
    gate = Gate()
    lost = []

    async def wait(client: AsyncClient) -> None:
        try:
            await client.call("fake.gate")
        except ConnectionLost:
            lost.append(True)

    async with (
        in_process_host(tmp_path, [gate_method(gate)], {"SYNAPSE_SERVER_DRAIN_S": "0"}) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(wait, client)
                await gate.came.wait()
                host.stop.set()
        assert len(lost) == 3
        with pytest.raises(ConnectionLost):
            await client.call("fake.gate")


async def test_closing_a_client_ends_its_waits(host: RunningHost, gate: Gate) -> None:
    client = await AsyncClient.connect(host.socket)
    ended = []

    async def wait() -> None:
        try:
            await client.call("fake.gate")
        except ConnectionLost:
            ended.append(True)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await gate.came.wait()
            await client.aclose()
    assert ended == [True, True]


async def test_call_cancelled_half_sent_spoils_its_connection_and_says_so(host: RunningHost) -> None:
    client = await AsyncClient.connect(host.socket)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call, "fake.echo", {"value": "x" * 8_000_000})
            await anyio.lowlevel.checkpoint()
            scope.cancel()
    with anyio.fail_after(DEADLINE_S), pytest.raises(ConnectionLost, match="half-sent"):
        await client.call("fake.echo")
    await client.aclose()


async def test_missing_host_is_named_with_its_remedy(tmp_path: Path) -> None:
    for connect in (partial(AsyncClient.connect, tmp_path / "none.sock"), _sync_connect(tmp_path / "none.sock")):
        with pytest.raises(HostUnreachable, match=r"none\.sock.*synapse-host serve"):
            await connect()


def _sync_connect(path: Path) -> Callable[[], Any]:
    async def connect() -> Client:
        return Client.connect(path)

    return connect


async def test_connection_past_the_limit_raises_the_hosts_refusal(tmp_path: Path) -> None:
    async with (
        in_process_host(tmp_path, [echo_method()], {"SYNAPSE_SERVER_MAX_CONNECTIONS": "1"}) as host,
        await AsyncClient.connect(host.socket),
    ):
        with pytest.raises(QueueFull, match="1 connections"):
            await AsyncClient.connect(host.socket)
        with pytest.raises(QueueFull, match="1 connections"):
            await _blocking(host, lambda client: client.call("fake.echo"))


async def test_wait_for_load_reports_each_state_once(client: AsyncClient) -> None:
    seen: list[str] = []
    status = await client.wait_for_load("job", on_state=lambda told: seen.append(told["state"]))
    assert status["model_id"] == "m"
    assert seen == ["loading", "ready"]


async def test_wait_for_probe_raises_the_jobs_error(client: AsyncClient) -> None:
    with pytest.raises(EngineCrashed):
        await client.wait_for_probe("job")


async def test_job_that_failed_silently_is_a_mismatch(tmp_path: Path) -> None:
    async with (
        in_process_host(tmp_path, [_job("probe.status", [{"state": "failed_transient"}])]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with pytest.raises(ReplyMismatch, match="failed_transient"):
            await client.wait_for_probe("job")


async def test_wrong_digest_from_the_host_is_caught(tmp_path: Path) -> None:
    async def lying(params: ItemsParams, context: RequestContext) -> Reply:
        return fake_embedding([(item["id"], "another text") for item in params.items])

    async with (
        in_process_host(tmp_path, [Method("embed.batch", "query", ItemsParams, lying)]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with pytest.raises(ReplyMismatch, match="submitted_sha256"):
            await client.embed_batch("m", ["a text"])


async def test_blocking_client_gives_the_same_answers(host: RunningHost, client: AsyncClient) -> None:
    texts = [f"text {number}" for number in range(150)]
    awaited = await client.embed_many("m", texts)
    blocked = await _blocking(host, lambda blocking: blocking.embed_many("m", texts))
    assert np.array_equal(awaited.vectors, blocked.vectors)
    one = await _blocking(host, lambda blocking: blocking.embed_query("m", "hi"))
    assert np.array_equal(one.vectors, (await client.embed_query("m", "hi")).vectors)
    status = await _blocking(host, lambda blocking: blocking.wait_for_load("job"))
    assert status["state"] == "ready"


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
async def test_large_values_pass_both_clients(host: RunningHost, client: AsyncClient, size: int) -> None:
    value = "z" * size
    assert (await client.call("fake.echo", {"value": value}))["value"] == value
    assert (await _blocking(host, lambda blocking: blocking.call("fake.echo", {"value": value})))["value"] == value


async def test_blocking_client_raises_the_hosts_refusals(host: RunningHost) -> None:
    with pytest.raises(UnknownMethod):
        await _blocking(host, lambda client: client.call("no.such"))
    with pytest.raises(EngineCrashed):
        await _blocking(host, lambda client: client.wait_for_probe("job"))


async def test_threads_may_share_a_blocking_client(host: RunningHost) -> None:
    client = await anyio.to_thread.run_sync(Client.connect, host.socket)
    answers: dict[int, Any] = {}

    async def ask(number: int) -> None:
        call = partial(client.call, "fake.echo", {"value": number})
        answers[number] = (await anyio.to_thread.run_sync(call))["value"]

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(ask, number)
    client.close()
    assert answers == {number: number for number in range(40)}
    with pytest.raises(ConnectionLost):
        client.call("fake.echo")


async def test_request_larger_than_the_hosts_frame_is_refused_here(tmp_path: Path) -> None:
    async with (
        in_process_host(tmp_path, [echo_method()], {"SYNAPSE_SERVER_MAX_FRAME": "4096"}) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with pytest.raises(InvalidRequest, match="limit of 4096"):
            await client.call("fake.echo", {"value": "x" * 5000})
        assert (await client.call("fake.echo", {"value": 1}))["value"] == 1


async def test_large_raw_vectors_arrive_exact(tmp_path: Path) -> None:
    dims = 70_000
    rng = np.random.default_rng(5)
    numbers = rng.standard_normal((3, dims)).astype(np.float32)

    async def large(params: AnyParams, context: RequestContext) -> Reply:
        return Reply({"vectors": [{"id": str(row)} for row in range(3)]}, RawVectors(3, dims, numbers.tobytes()))

    async with (
        in_process_host(tmp_path, [Method("fake.large", "query", AnyParams, large)]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        awaited = await client.call("fake.large")
        blocked = await _blocking(host, lambda client: client.call("fake.large"))
    for answer in (awaited, blocked):
        assert np.array_equal(np.stack([item["vector"] for item in answer["vectors"]]), numbers)


def test_every_refusal_type_is_a_synapse_error() -> None:
    assert issubclass(UnknownMethod, SynapseError)
