"""What a client sends again by itself: what may pass soon, and with the cause of what it gives up for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.cli.output import failures_explained
from synapse_host.client.async_client import AsyncClient
from synapse_host.errors import EXCEPTIONS, EngineCrashed, ModelLoading, ProbeRequired, SynapseError
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.testing.fake_methods import ItemsParams
from synapse_host.testing.in_process_host import in_process_host

pytestmark = pytest.mark.anyio

CRASHED = EngineCrashed("the worker died", details={"output_tail": "the last words"}, retry_after_ms=1)
QUARANTINED = ProbeRequired("quarantined after 2 failures")
LOADING = ModelLoading("still loading", retry_after_ms=1)
PAUSED = EXCEPTIONS["lane_paused"]("paused for half an hour", retry_after_ms=1_800_000)


async def by_embed_many(client: AsyncClient) -> Any:
    return await client.embed_many("m", ["a"], retries=9)


async def by_call(client: AsyncClient) -> Any:
    return await client.call("embed.batch", {"items": [{"id": "0", "text": "a"}]}, retries=9)


async def refused(folder: Path, ask: Callable[[AsyncClient], Awaitable[Any]], *refusals: SynapseError) -> SynapseError:
    """What a client ends with whose requests are refused with these in turn."""
    left = list(refusals)

    async def refusing(params: ItemsParams, context: RequestContext) -> Reply:
        raise left.pop(0)

    with anyio.fail_after(30):
        async with (
            in_process_host(folder, [Method("embed.batch", "query", ItemsParams, refusing)]) as host,
            await AsyncClient.connect(host.socket) as client,
        ):
            with pytest.raises(SynapseError) as caught:
                await ask(client)
    assert left == []
    return caught.value


@pytest.mark.parametrize("ask", [by_embed_many, by_call])
async def test_a_wait_of_more_than_a_minute_is_told_and_not_waited(
    tmp_path: Path, ask: Callable[[AsyncClient], Awaitable[Any]]
) -> None:
    assert (await refused(tmp_path, ask, PAUSED)).code == "lane_paused"


@pytest.mark.parametrize("ask", [by_embed_many, by_call])
async def test_what_the_tries_before_ended_with_is_the_cause_and_is_shown(
    tmp_path: Path, ask: Callable[[AsyncClient], Awaitable[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = await refused(tmp_path, ask, CRASHED, CRASHED, QUARANTINED)
    assert isinstance(refusal, ProbeRequired)
    assert isinstance(refusal.__cause__, EngineCrashed)
    with pytest.raises(BaseException, match="1"), failures_explained():
        raise refusal
    told = capsys.readouterr().err
    assert told.index("probe_required: quarantined") < told.index("before that, engine_crashed: the worker died")
    assert "the last words" in told


async def without_retries(client: AsyncClient) -> Any:
    return await client.embed_many("m", ["a"], deadline_ms=1000)


async def test_many_texts_wait_for_a_model_that_loads(tmp_path: Path) -> None:
    assert (await refused(tmp_path, without_retries, LOADING, LOADING, CRASHED)).code == "engine_crashed"


async def test_and_no_longer_than_their_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The beginning, and each refusal: the second comes when the second is over.
    times = [5.0, 5.9, 6.0]
    monkeypatch.setattr("synapse_host.client.bulk.monotonic", lambda: times.pop(0))
    assert (await refused(tmp_path, without_retries, LOADING, LOADING)).code == "model_loading"


async def test_one_request_is_not_sent_again_for_that(tmp_path: Path) -> None:
    async def once(client: AsyncClient) -> Any:
        return await client.embed_batch("m", [("0", "a")])

    assert (await refused(tmp_path, once, LOADING)).code == "model_loading"
