"""The host's two sockets against peers that send anything: typed ends, and the good ones served beside and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.server import session
from synapse_host.supervision import exchange
from synapse_host.testing.client_conversations import HANDLERS as CLIENT_HANDLERS
from synapse_host.testing.client_conversations import fuzz_host
from synapse_host.testing.exchange_fuzz import HANDLERS as EXCHANGE_HANDLERS
from synapse_host.testing.exchange_fuzz import fuzz_exchanges
from synapse_host.testing.fake_methods import echo_method, embedding_methods
from synapse_host.testing.in_process_host import in_process_host

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: A million each with ``make soak``.
EXCHANGED, ASKED = 60_000, 15_000
REACHED = 100


async def test_no_worker_surprises_the_host() -> None:
    tally = await fuzz_exchanges(EXCHANGED, seed=1)
    print(f"{tally['frames']} frames, reached least: {min((tally[name], name) for name in EXCHANGE_HANDLERS)}")
    assert {name: tally[name] for name in EXCHANGE_HANDLERS if tally[name] < REACHED} == {}


async def test_no_client_surprises_the_host_and_the_others_are_served(tmp_path: Path) -> None:
    async with in_process_host(tmp_path, [echo_method(), *embedding_methods()]) as host:
        tally = await fuzz_host(host.socket, ASKED, seed=1)
    print(f"{tally['frames']} frames, reached least: {min((tally[name], name) for name in CLIENT_HANDLERS)}")
    assert {name: tally[name] for name in CLIENT_HANDLERS if tally[name] < REACHED} == {}


async def test_the_fuzz_sees_a_reply_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "check_reply", lambda *_, **__: None)
    with pytest.raises(AssertionError, match=r"seed 3, after \d+ frames"):
        await fuzz_exchanges(5_000, seed=3)


async def test_the_fuzz_sees_an_answer_to_another_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_error = session.encode_error
    monkeypatch.setattr(session, "encode_error", lambda _, *rest, **named: encode_error("another", *rest, **named))
    async with in_process_host(tmp_path, [echo_method(), *embedding_methods()]) as host:
        with pytest.raises(AssertionError, match=r"seed 3, after \d+ frames: .*'another'"):
            await fuzz_host(host.socket, 5_000, seed=3)
