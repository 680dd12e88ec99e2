from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest

from synapse_host.client.exchange import Exchange, Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.errors import InvalidRequest, QueueFull, UnknownMethod


def _frame(document: Any) -> bytes:
    body = orjson.dumps(document)
    return struct.pack("<I", len(body)) + body


def _raw(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _announced(number: int, rows: int, dims: int) -> bytes:
    return _frame({"id": number, "result": {"raw": {"rows": rows, "dims": dims}}})


@pytest.mark.parametrize("piece", [1, 3, 7, 50, 100_000])
def test_answers_are_matched_however_the_bytes_arrive(piece: int) -> None:
    exchange = Exchange()
    numbers = [exchange.request("m", {})[0] for _ in range(4)]
    one, two = bytes(range(16)), struct.pack("<3f", 1, 2, 3)
    stream = (
        _announced(numbers[2], 2, 2) + _raw(one) + _frame({"id": numbers[0], "result": {"value": 1}})
        + _announced(numbers[3], 1, 3) + _raw(two) + _announced(numbers[1], 0, 3) + _raw(b"")
    )  # fmt: skip
    completed = []
    for start in range(0, len(stream), piece):
        completed += exchange.feed(stream[start : start + piece])
    assert completed == [numbers[2], numbers[0], numbers[3], numbers[1]]
    assert exchange.take(numbers[0]) == Received({"value": 1})
    answers = [exchange.take(number) for number in (numbers[2], numbers[3], numbers[1])]
    assert [answer and bytes(answer.raw or b"") for answer in answers] == [one, two, b""]


def test_large_raw_frame_is_read_into_place() -> None:
    exchange = Exchange()
    number, _ = exchange.request("m", {})
    data = bytes(range(256)) * 1024
    exchange.feed(_announced(number, 256, 256) + _raw(data)[:1000])
    done = 996
    while (space := exchange.space()) is not None:
        step = min(len(space), 100_000)
        space[:step] = data[done : done + step]
        done += step
        completed = exchange.filled(step)
    assert exchange.feed(data[done:]) + completed == [number]
    answer = exchange.take(number)
    assert answer is not None
    assert answer.raw == data


def test_thousands_of_small_raw_answers_in_one_read() -> None:
    exchange = Exchange()
    numbers = [exchange.request("m", {})[0] for _ in range(5000)]
    assert exchange.feed(b"".join(_announced(number, 1, 1) + _raw(b"abcd") for number in numbers)) == numbers


def test_forgotten_answer_is_thrown_away_with_its_raw_frame() -> None:
    exchange = Exchange()
    gone, kept = exchange.request("m", {})[0], exchange.request("m", {})[0]
    exchange.forget(gone)
    assert exchange.feed(_announced(gone, 1, 1) + _raw(b"abcd") + _frame({"id": kept, "result": {}})) == [kept]
    assert exchange.take(gone) is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"error": {"code": "unknown_method", "class": "permanent", "message": "no"}}, UnknownMethod),
        ({"result": {"error": {"code": "queue_full", "class": "transient", "message": "full"}}}, QueueFull),
        ({"result": {"error": {"code": "from_the_future", "message": "?"}}}, ReplyMismatch),
    ],
)
def test_refusal_has_the_type_of_its_code(answer: dict[str, Any], kind: type[Exception]) -> None:
    exchange = Exchange()
    number, _ = exchange.request("m", {})
    exchange.feed(_frame({"id": number, **answer}))
    with pytest.raises(kind):
        exchange.take(number)


def test_error_beside_a_state_is_an_answer() -> None:
    exchange = Exchange()
    number, _ = exchange.request("model.status", {})
    status = {"state": "failed", "error": {"code": "artifact_invalid", "message": "bad"}}
    exchange.feed(_frame({"id": number, "result": status}))
    assert exchange.take(number) == Received(status)


def test_wire_decides_whether_a_retry_is_safe() -> None:
    exchange = Exchange()
    number, _ = exchange.request("m", {})
    wire = {"code": "queue_full", "class": "transient", "message": "", "safe_to_retry_same_request": False}
    exchange.feed(_frame({"id": number, "error": wire}))
    with pytest.raises(QueueFull) as caught:
        exchange.take(number)
    assert not caught.value.safe_to_retry


def test_refusal_of_the_connection_is_kept() -> None:
    exchange = Exchange()
    exchange.feed(_frame({"id": None, "error": {"code": "queue_full", "message": "64 connections"}}))
    assert isinstance(exchange.refusal, QueueFull)


@pytest.mark.parametrize(
    "data",
    [
        _raw(b"not json"),
        _frame([1, 2]),
        _frame({"id": 1}),
        _frame({"id": 1, "result": [1]}),
        _frame({"id": 1, "result": {"raw": {"rows": 2, "dims": 2}}}) + _raw(b"12345678"),
        _frame({"id": 1, "result": {"raw": {"rows": -1, "dims": 2}}}),
        _frame({"id": 1, "result": {"raw": {"rows": 1 << 40, "dims": 2}}}),
        struct.pack("<I", 1 << 31),
    ],
)
def test_bytes_that_are_no_answer_end_the_connection(data: bytes) -> None:
    exchange = Exchange()
    exchange.request("m", {})
    with pytest.raises(ReplyMismatch):
        exchange.feed(data)


def test_hello_sets_the_frame_limit() -> None:
    exchange = Exchange()
    exchange.feed(
        _frame({"hello": {"api": 1, "version": "1", "module_generation": 2, "max_frame": 100, "vectors": "f32"}})
    )
    assert exchange.host is not None
    assert exchange.host.module_generation == 2
    with pytest.raises(InvalidRequest, match="limit of 100 bytes"):
        exchange.request("m", {"text": "x" * 100})


@pytest.mark.parametrize("value", ["\ud800", {1, 2}])
def test_what_json_cannot_say_is_refused_before_sending(value: object) -> None:
    with pytest.raises(InvalidRequest, match="parameters of m cannot be sent"):
        Exchange().request("m", {"value": value})


@pytest.mark.parametrize("error", [[1], "queue_full", 0.5, True])
@pytest.mark.parametrize("place", ["channel", "connection", "result"])
def test_an_error_that_is_no_object_closes_the_connection(error: Any, place: str) -> None:
    exchange = Exchange()
    number, _ = exchange.request("m", {})
    answers = {
        "channel": {"id": number, "error": error},
        "connection": {"id": None, "error": error},
        "result": {"id": number, "result": {"error": error}},
    }
    with pytest.raises(ReplyMismatch, match="where an object belongs"):
        exchange.feed(_frame(answers[place]))
