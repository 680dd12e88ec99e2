"""The host's two sockets against peers that send anything: typed ends, and the good ones served beside and after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from synapse_host.server import session
from synapse_host.supervision import exchange
from synapse_host.testing.client_conversations import HANDLERS as CLIENT_HANDLERS
from synapse_host.testing.client_conversations import fuzz_host
from synapse_host.testing.crashes.crash_cycles import Holdings, holdings, slope
from synapse_host.testing.fake_methods import echo_method, embedding_methods
from synapse_host.testing.fuzz.exchange_fuzz import HANDLERS as EXCHANGE_HANDLERS
from synapse_host.testing.fuzz.exchange_fuzz import fuzz_exchanges
from synapse_host.testing.in_process_host import in_process_host

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what a process holds from /proc"),
]

#: Frames of a round, ten times as many rounds with ``make soak``; the first rounds fill caches.
EXCHANGED, ASKED = 7_500, 3_500
ROUNDS, WARM_UP = 8, 3
REACHED = 1_000
#: Objects and KiB that a round may add, the noise of collector and allocator: an object kept of each fortieth frame is
#: more, and so is a buffer of each hundredth connection.
MOST_OBJECTS, MOST_KIB = 90, 400


async def test_no_worker_surprises_the_host() -> None:
    tally, held = Counter[str](), []
    for seed in range(ROUNDS):
        tally += await fuzz_exchanges(EXCHANGED, seed)
        held.append(holdings())
    check(tally, EXCHANGE_HANDLERS, held)


async def test_no_client_surprises_the_host_and_the_others_are_served(tmp_path: Path) -> None:
    tally, held = Counter[str](), []
    async with in_process_host(tmp_path, [echo_method(), *embedding_methods()]) as host:
        for seed in range(ROUNDS):
            tally += await fuzz_host(host.socket, ASKED, seed)
            held.append(holdings())
    check(tally, CLIENT_HANDLERS, held)


def check(tally: Counter[str], handlers: frozenset[str], held: list[Holdings]) -> None:
    """Every handler was reached, and nothing was kept of any round."""
    settled = held[WARM_UP:]
    objects, kib = (slope([getattr(look, name) for look in settled]) for name in ("objects", "resident_kib"))
    print(f"{tally['frames']} frames, reached least: {min((tally[name], name) for name in handlers)}")
    print(f"{objects:.1f} objects and {kib:.1f} KiB a round, {settled[-1]}")
    assert {name: tally[name] for name in handlers if tally[name] < REACHED} == {}
    assert len({(look.descriptors, look.tasks, look.children) for look in settled}) == 1, settled
    assert objects < MOST_OBJECTS
    assert kib < MOST_KIB


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
