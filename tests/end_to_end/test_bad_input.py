"""Every kind of bad request gets its own refusal, and the host serves on with the same bits."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from synapse_host.errors import ModuleRestarted
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.refusal import Refusal, refusal
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.steady_host import GOOD_MODEL, UNCERTIFIED_MODEL, SteadyHost, steady_host

pytestmark = pytest.mark.anyio

#: Small, so that a frame past it is quickly made.
MAX_FRAME = 1 << 20


@pytest.fixture(scope="module")
def steady(
    tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, certified: Callable[[Path], Path]
) -> Iterator[SteadyHost]:
    limits = {"SYNAPSE_SERVER_MAX_FRAME": str(MAX_FRAME), "SYNAPSE_INLINE_MAX_TOKENS": "4000"}
    with steady_host(certified(tmp_path_factory.mktemp("bad-input")), tiny_directory, **limits) as running:
        yield running


@asynccontextmanager
async def connected(steady: SteadyHost) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.connect(steady.host.socket)
    try:
        yield peer
    finally:
        await peer.close()


def channel(*words: str) -> Refusal:
    return refusal("invalid_request", "channel", *words)


FRAMES = {
    "malformed JSON": (b'{"id": 7, "method": embed}', channel("not UTF-8 JSON", "embed}")),
    "cut JSON": (b'{"id": 7, "method": "emb', channel("not UTF-8 JSON", '"emb')),
    "two documents": (b'{"id": 1} {"id": 2}', channel("not UTF-8 JSON", '{"id": 2}')),
    "NaN": (b'{"id": 1, "method": "x", "params": {"a": NaN}}', channel("not UTF-8 JSON", "NaN")),
    "not UTF-8": (b'{"id": 1, "method": "\xff\xfe"}', channel("not UTF-8 JSON", r"\xff\xfe")),
    "UTF-16": ('{"id": 1}'.encode("utf-16"), channel("not UTF-8 JSON", r"\xff\xfe")),
    "nothing": (b"", channel("not UTF-8 JSON", "empty")),
    "very deep": (b"[" * 100_000, channel("not UTF-8 JSON", "depth", "[[[")),
    "an array": (b'["embed.query"]', channel("an array")),
    "a string": (b'"embed.query"', channel("a string")),
    "a number": (b"17", channel("a number")),
    "null": (b"null", channel("null")),
    "no method": (b'{"id": 1}', channel("method", "missing")),
    "method of another kind": (b'{"id": 1, "method": 4}', channel("method", "a number")),
    "params of another kind": (b'{"id": 1, "method": "models.list", "params": [1]}', channel("params", "an array")),
    "unknown field of the request": (b'{"id": 1, "method": "models.list", "meth": 2}', channel("'meth'")),
    "scope of another kind": (b'{"id": 1, "method": "models.list", "scope": "f"}', channel("scope", "a string")),
    "unknown field of the scope": (b'{"id": 1, "method": "models.list", "scope": {"flow": 1}}', channel("scope.flow")),
    "blank flow": (b'{"id": 1, "method": "models.list", "scope": {"flow_id": ""}}', channel("flow_id", "''")),
    "late hello": (b'{"hello": {"api": 1}}', channel("hello", "first frame")),
    "lone surrogate in an item": (
        b'{"id": 1, "method": "embed.batch", "params": {"model": "good", "items": '
        b'[{"id": "a", "text": "fine"}, {"id": "b", "text": "bad \\ud800 text"}]}}',
        channel("params.items[1]", "'b'", "U+D800", "character 4"),
    ),
    "lone surrogate in a text": (
        b'{"id": 1, "method": "embed.query", "params": {"model": "good", "text": "\\udfff"}}',
        channel("params.text", "U+DFFF"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
async def test_a_frame_that_is_no_request_is_refused_and_the_connection_goes_on(steady: SteadyHost, name: str) -> None:
    frame, expected = FRAMES[name]
    async with connected(steady) as peer:
        await peer.ask({"id": 0, "method": "models.list"})
        await peer.send_frame(frame)
        expected.check(await peer.receive())
        assert "models" in (await peer.ask({"id": 2, "method": "models.list"}))["result"]
    steady.check()


@pytest.mark.parametrize("size", [MAX_FRAME + 1, 2**31, 2**32 - 1])
async def test_an_oversized_frame_is_refused_and_the_connection_closes(steady: SteadyHost, size: int) -> None:
    async with connected(steady) as peer:
        await peer.send_bytes(struct.pack("<I", size) + b"{")
        channel(str(size), str(MAX_FRAME), "closed").check(await peer.receive())
        assert await peer.is_closed()
    steady.check()


async def test_half_a_frame_and_a_goodbye_harm_nobody(steady: SteadyHost) -> None:
    async with connected(steady) as peer:
        await peer.send_bytes(struct.pack("<I", 1000) + b'{"id": 1, "method"')
    steady.check()


def query(**params: Any) -> dict[str, Any]:
    return {"id": 1, "method": "embed.query", "params": {"model": GOOD_MODEL, "text": "text", **params}}


def batch(**params: Any) -> dict[str, Any]:
    return {"id": 1, "method": "embed.batch", "params": {"model": GOOD_MODEL, **params}}


def call(method: str, /, flow_id: str | None = None, **params: Any) -> dict[str, Any]:
    scope = {} if flow_id is None else {"scope": {"flow_id": flow_id}}
    return {"id": 1, "method": method, "params": params, **scope}


UNKNOWN_METHOD, FLOW = ("unknown_method", "channel"), ("flow_scope_refused", "channel")
SUBSTITUTION, UNKNOWN_MODEL = ("substitution_rejected", "result"), ("unknown_model", "result")
INVALID, BAD = ("invalid_request", "result"), ("invalid_request", "channel")
LONG = "n" * 100_000

REQUESTS = {
    "unknown method": (call("embed.quarry"), refusal(*UNKNOWN_METHOD, "'embed.quarry'")),
    "very long method": (call(LONG), refusal(*UNKNOWN_METHOD, "nnnn")),
    "contract method not served yet": (
        call("approvals.enable"), refusal(*UNKNOWN_METHOD, "'approvals.enable'", "not served"),
    ),
    "unknown field": (query(texte="x"), channel("params.texte", "'x'", "unknown field")),
    "unknown field with a very long name": (query(**{LONG: 1}), channel("params.nnnn", "unknown field")),
    "unknown field of an item": (batch(items=[{"id": "a", "text": "b", "lang": "en"}]), channel("lang", "'en'")),
    "missing field": (call("embed.query", model=GOOD_MODEL), channel("params.text", "missing")),
    "missing field of an item": (batch(items=[{"id": "a"}]), channel("params.items[0]", "text", "missing")),
    "number for a text": (query(text=17), channel("params.text", "17")),
    "null for a text": (query(text=None), channel("params.text", "None")),
    "list for a text": (query(text=["a"]), channel("params.text", "['a']")),
    "number in a list of texts": (batch(texts=["a", 5]), channel("params.texts[1]", "5")),
    "object for a list": (batch(items={"id": "a", "text": "b"}), channel("params.items", "'text': 'b'")),
    "text for a list": (batch(texts="abc"), channel("params.texts", "'abc'")),
    "number for an item's id": (batch(items=[{"id": 5, "text": "b"}]), channel("items[0]", "5")),
    "blank id of an item": (batch(items=[{"id": "", "text": "b"}]), channel("items[0]", "''")),
    "very long id of an item": (batch(items=[{"id": "i" * 300, "text": "b"}]), channel("items[0]", "iii", "256")),
    "number for a model": (query(model=3), channel("params.model", "3")),
    "blank model": (query(model=""), channel("params.model", "''")),
    "text for a deadline": (query(deadline_ms="100"), channel("params.deadline_ms", "'100'")),
    "fraction for a deadline": (query(deadline_ms=1.5), channel("params.deadline_ms", "1.5")),
    "bool for a deadline": (query(deadline_ms=True), channel("params.deadline_ms", "True")),
    "negative deadline": (query(deadline_ms=-5), channel("params.deadline_ms", "-5", "greater than 0")),
    "zero deadline": (query(deadline_ms=0), channel("params.deadline_ms", "= 0", "greater than 0")),
    "epoch for a deadline": (query(deadline_ms=1_780_000_000_000), channel("params.deadline_ms", "1780000000000")),
    "huge deadline": (query(deadline_ms=2**62), channel("params.deadline_ms", str(2**62))),
    "deadline past 64 bits": (query(deadline_ms=2**64 - 1), channel("params.deadline_ms", str(2**64 - 1))),
    "negative queue bound": (query(max_queue_ms=-1), channel("params.max_queue_ms", "-1")),
    "number for a bool": (query(allow_equivalent=1), channel("params.allow_equivalent", "1")),
    "negative epoch": (query(required_epoch=-1), channel("params.required_epoch", "-1")),
    "no items": (batch(items=[]), channel("[]")),
    "no texts": (batch(texts=[]), channel("[]")),
    "neither items nor texts": (batch(), channel("items", "texts", "exactly one")),
    "both items and texts": (batch(items=["a"], texts=["a"]), channel("items", "texts", "exactly one")),
    "duplicate ids": (
        batch(items=[{"id": "same", "text": "a"}, {"id": "same", "text": "b"}]),
        refusal(*INVALID, "'same'", "twice", details="item_id"),
    ),
    "an index taken as id": (
        batch(items=["a", {"id": "0", "text": "b"}]), refusal(*INVALID, "'0'", details="item_id"),
    ),
    "too many items and no key": (
        batch(texts=["a"] * 65), refusal(*INVALID, "65", "64", "request_key", details="items max_items"),
    ),
    "too many tokens and a blank key": (
        batch(texts=["a e i o u " * 40] * 64, request_key=" "),
        refusal(*INVALID, "4096", "4000", "request_key", details="tokens max_tokens"),
    ),
    "cursor of nobody": (
        call("embed.result", job_id="j", cursor="last"),
        refusal(*INVALID, "'last'", "next_cursor", details="job_id cursor"),
    ),
    "result of an unknown job": (call("embed.result", job_id="j"), refusal(*INVALID, "'j'", details="job_id")),
    "resuming an unknown job": (call("job.resume", job_id="j"), refusal(*INVALID, "'j'", details="job_id")),
    "cancelling an unknown job": (call("job.cancel", job_id="j"), refusal(*INVALID, "'j'", details="job_id")),
    "cancelling an unknown key": (
        call("job.cancel", request_key="k"), refusal(*INVALID, "'k'", details="request_key"),
    ),
    "cancelling nothing": (call("job.cancel"), refusal(*BAD, "job_id", "request_key")),
    "page of nothing": (call("embed.result", job_id="j", max_page_bytes=0), channel("params.max_page_bytes", "0")),
    "deadline that cannot be met": (
        query(text="text " * 50_000, deadline_ms=1), refusal("deadline_exceeded", "result", "deadline_ms of 1 "),
    ),
    "wrong required_fingerprint": (
        query(required_fingerprint="f" * 64),
        refusal(*SUBSTITUTION, "f" * 64, GOOD_MODEL, details="lane_id required_fingerprint"),
    ),
    "wrong target_fingerprint": (
        query(target_fingerprint="e" * 64), refusal(*SUBSTITUTION, "e" * 64, details="lane_id required_fingerprint"),
    ),
    "unknown fingerprint and no model": (
        call("embed.query", text="a", required_fingerprint="nope"),
        refusal(*SUBSTITUTION, "'nope'", details="lane_id required_fingerprint"),
    ),
    "epoch too new": (
        query(required_epoch=9), refusal("migration_required", "result", "9", details="required_epoch table_epoch"),
    ),
    # The default of the task answers where it can run; no machine of the tests has its accelerator's plugin.
    "no model": (
        call("embed.query", text="a"),
        refusal("backend_unavailable", "result", "gte-modernbert-base", details="catalog_id lane_id backends"),
    ),
    "unknown model": (query(model="absent"), refusal(*UNKNOWN_MODEL, "'absent'", GOOD_MODEL, details="model_id")),
    "model id with slashes": (
        query(model="../../etc/passwd"), refusal(*UNKNOWN_MODEL, "'../../etc/passwd'", details="model_id"),
    ),
    "uncertified model": (
        query(model=UNCERTIFIED_MODEL),
        refusal("probe_required", "result", UNCERTIFIED_MODEL, "probe", details="model_id fingerprint"),
    ),
    "status of nothing": (call("model.status"), channel("job_id", "model_id")),
    "status of both": (call("model.status", job_id="a", model_id="b"), channel("job_id", "model_id")),
    "status of an unknown job": (
        call("model.status", job_id="model-load-77-1"), refusal(*INVALID, "'model-load-77-1'", details="job_id"),
    ),
    "status of a job with odd digits": (
        call("model.status", job_id="model-load-²-1"), refusal(*INVALID, "model-load-²-1", details="job_id"),
    ),
    "status of a job with very many digits": (
        call("model.status", job_id=f"model-load-{'1' * 200}-1"), refusal(*INVALID, "1" * 200, details="job_id"),
    ),
    "status of another kind of job": (
        call("probe.status", job_id="model-load-1-1"), refusal(*INVALID, "'model-load-1-1'", details="job_id"),
    ),
    "status of an unknown model": (
        call("model.status", model_id="x"), refusal(*UNKNOWN_MODEL, "'x'", details="model_id"),
    ),
    "job of an earlier process": (
        call("model.status", job_id="model-load-0-1"), refusal("module_restarted", "result", "'model-load-0-1'"),
    ),
    "unload of an unknown model": (
        call("model.unload", model_id="x"), refusal(*UNKNOWN_MODEL, "'x'", details="model_id"),
    ),
    "unload without a model": (call("model.unload"), channel("params.model_id", "missing")),
    "probe of an unknown model": (
        call("probe.start", models=["x"]), refusal(*UNKNOWN_MODEL, "'x'", details="model_id"),
    ),
    "probe of nothing": (call("probe.start", models=[]), channel("params.models", "[]")),
    "flow-scoped mutation": (
        call("model.unload", "flow-7", model_id=GOOD_MODEL), refusal(*FLOW, "'model.unload'", "'flow-7'"),
    ),
    "very long flow": (call("cache.gc", LONG), refusal(*FLOW, "'cache.gc'", "nnnn")),
    "flow-scoped mutation not served yet": (call("cache.gc", "flow-7"), refusal(*FLOW, "'cache.gc'", "'flow-7'")),
    "flow-scoped undeclared method": (call("embed.quarry", "flow-7"), refusal(*FLOW, "'embed.quarry'", "'flow-7'")),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_bad_request_is_refused_as_the_table_says(steady: SteadyHost, name: str) -> None:
    request, expected = REQUESTS[name]
    async with connected(steady) as peer:
        await peer.send(request)
        answer = await peer.receive_frame()
    assert len(answer) < 4000, "a large request must not become a large refusal"
    document = orjson.loads(answer)
    assert document["id"] == 1
    expected.check(document)
    steady.check()


async def test_a_number_no_integer_type_holds_is_refused_with_its_value(steady: SteadyHost) -> None:
    frame = b'{"id": 1, "method": "embed.query", "params": {"model": "good", "text": "a", "deadline_ms": 1%b}}'
    async with connected(steady) as peer:
        await peer.send_frame(frame % (b"0" * 30))
        channel("params.deadline_ms", "1e+30").check(await peer.receive())
    steady.check()


async def test_unload_tolerates_fields_it_does_not_know(steady: SteadyHost) -> None:
    """The one served method that must (reading 9)."""
    async with connected(steady) as peer:
        answer = await peer.ask(call("model.unload", model_id=GOOD_MODEL, force=True, reason={"why": "not"}))
    assert answer["result"]["state"] == "unloaded"
    steady.remember()


async def test_a_job_of_an_earlier_process_is_told_so_after_a_real_restart(
    tmp_path: Path, tiny_directory: Path
) -> None:
    with RunningHost(tmp_path) as host, host.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id="kept", certify=False)
        job = client.model_load(source="file", path=str(tiny_directory), engine="reference", model_id="kept")
        host.kill()
    with RunningHost(tmp_path) as host, host.client() as client:
        with pytest.raises(ModuleRestarted, match=job["job_id"]):
            client.model_status(job_id=job["job_id"])
        assert [row["model_id"] for row in client.models_list()["models"]] == ["kept"]
