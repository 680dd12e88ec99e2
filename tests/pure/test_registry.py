from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, StrictInt, field_validator

from synapse_host.errors import FlowScopeRefused, InvalidRequest, UnknownMethod
from synapse_host.operations.contract_methods import CONTRACT_METHODS, MethodKind
from synapse_host.operations.registry import Method, Registry, Reply, RequestContext

HERE = RequestContext(0.0)
FLOW = RequestContext(0.0, flow_id="flow-9")


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str
    count: StrictInt = 1
    items: list[str] | None = None

    @field_validator("text")
    @classmethod
    def not_forbidden(cls, text: str) -> str:
        if text == "forbidden":
            raise ValueError("Choose another text")
        return text


class Tolerant(BaseModel):
    model_config = ConfigDict(extra="ignore")
    model_id: str


class Silent(BaseModel):
    text: str


async def _answer(params: BaseModel, context: RequestContext) -> Reply:
    return Reply(params.model_dump())


def _method(name: str, kind: MethodKind = "query", params: type[BaseModel] = Params) -> Method:
    return Method(name, kind, params, _answer)


@pytest.fixture
def registry() -> Registry:
    return Registry(
        [_method("embed.query"), _method("model.load", "mutate"), _method("model.unload", "mutate", Tolerant)]
    )


@pytest.mark.anyio
async def test_request_reaches_its_handler(registry: Registry) -> None:
    reply = await registry.dispatch("embed.query", {"text": "hi"}, HERE)
    assert reply.payload == {"text": "hi", "count": 1, "items": None}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, ["params.text is missing"]),
        ({"text": 5}, ["params.text = 5", "valid string"]),
        ({"text": "x", "count": "3"}, ["params.count = '3'"]),
        ({"text": "x", "count": True}, ["params.count = True"]),
        ({"text": "x", "items": ["a", None]}, ["params.items[1] = None"]),
        ({"text": "x", "texts": "y"}, ["params.texts = 'y'", "unknown field", "known: text, count, items"]),
        ({"text": "forbidden"}, ["params.text = 'forbidden'", "choose another text"]),
    ],
)
async def test_malformed_params_name_field_value_and_remedy(
    registry: Registry, params: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await registry.dispatch("embed.query", params, HERE)
    assert caught.value.channel
    assert caught.value.details is None
    assert all(word in caught.value.message for word in ["embed.query", *words])


@pytest.mark.anyio
async def test_message_stays_short_for_a_huge_value(registry: Registry) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await registry.dispatch("embed.query", {"text": "x", "count": "9" * 1_000_000}, HERE)
    assert len(caught.value.message) < 400


@pytest.mark.anyio
async def test_tolerant_method_ignores_unknown_fields(registry: Registry) -> None:
    reply = await registry.dispatch("model.unload", {"model_id": "m", "why": "because"}, HERE)
    assert reply.payload == {"model_id": "m"}


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["no.such", "models.catalog"])
async def test_method_that_is_not_served_is_unknown(registry: Registry, method: str) -> None:
    with pytest.raises(UnknownMethod, match=method):
        await registry.dispatch(method, {}, HERE)


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["model.load", "model.unload", "no.such", "cache.gc"])
async def test_flow_may_not_call_what_is_no_declared_query(registry: Registry, method: str) -> None:
    with pytest.raises(FlowScopeRefused) as caught:
        await registry.dispatch(method, {}, FLOW)
    assert method in caught.value.message
    assert "flow-9" in caught.value.message


@pytest.mark.anyio
async def test_flow_may_call_queries(registry: Registry) -> None:
    reply = await registry.dispatch("embed.query", {"text": "hi"}, FLOW)
    assert reply.payload["text"] == "hi"


@pytest.mark.anyio
async def test_flow_learns_that_a_declared_query_is_not_served_yet(registry: Registry) -> None:
    with pytest.raises(UnknownMethod):
        await registry.dispatch("lanes.status", {}, FLOW)


def test_a_name_is_registered_once(registry: Registry) -> None:
    with pytest.raises(ValueError, match="twice"):
        registry.add(_method("embed.query"))


def test_kind_must_be_the_contracts() -> None:
    with pytest.raises(ValueError, match="the contract says mutate"):
        Registry([_method("cache.gc", "query")])


def test_params_model_must_decide_on_unknown_fields() -> None:
    with pytest.raises(ValueError, match="Silent"):
        Registry([_method("embed.query", params=Silent)])


def test_contract_has_forty_methods_and_fifteen_queries() -> None:
    assert len(CONTRACT_METHODS) == 40
    assert sorted(name for name, kind in CONTRACT_METHODS.items() if kind == "query") == [
        "admission.status",
        "aliases.check_index",
        "certify.observations",
        "embed.batch",
        "embed.query",
        "embed.result",
        "lanes.status",
        "microllm.oneshot",
        "model.status",
        "models.catalog",
        "models.list",
        "owned_decode.session_status",
        "probe.report",
        "probe.status",
        "rerank.score",
    ]
