"""What an HTTP answer means, when to try again, where to ask."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.cache import pin_owners
from synapse_host.downloads.answer import BeginAnew, Body, Refused, read_answer, retry_after_s
from synapse_host.downloads.attempts import LONGEST_WAIT_S, MOST_ATTEMPTS, MOST_FRUITLESS, Attempts
from synapse_host.downloads.patience import AS_THE_LAST, WINDOW_S, WITH_ANOTHER, Pace
from synapse_host.downloads.seams import Holder
from synapse_host.downloads.sources import Address, Sources, address_fault

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "headers", "offset", "meaning"),
    [
        (200, {"Content-Length": "10"}, 0, Body(0, 10)),
        (200, {}, 0, Body(0, None, until_closed=True)),
        (200, {"Transfer-Encoding": "chunked"}, 0, Body(0, None)),
        (206, {"Content-Range": "bytes 4-9/10", "Content-Length": "6"}, 4, Body(4, 10)),
        (200, {"Content-Length": "ten"}, 0, Body(0, None)),
        (200, {"Content-Length": "10"}, 4, Body(0, 10)),
        (206, {"Content-Range": "bytes 4-9/10"}, 4, Body(4, 10, until_closed=True)),
        (206, {"Content-Range": "bytes 4-9/*"}, 4, Body(4, None, until_closed=True)),
        (206, {"Content-Range": "bytes 3-9/10"}, 4, BeginAnew()),
        (206, {"Content-Range": "items 4-9/10"}, 4, BeginAnew()),
        (206, {}, 4, BeginAnew()),
        (206, {"Content-Range": "bytes 0-9/10"}, 0, Refused(206, False)),
        (416, {}, 4, BeginAnew()),
        (416, {}, 0, Refused(416, False)),
        (204, {}, 0, Refused(204, False)),
        (404, {"Retry-After": "3"}, 0, Refused(404, False, 3.0)),
        (429, {"Retry-After": "3"}, 4, Refused(429, True, 3.0)),
        (503, {}, 0, Refused(503, True)),
    ],
)
def test_the_head_of_an_answer(status: int, headers: dict[str, str], offset: int, meaning: object) -> None:
    assert read_answer(status, headers, offset, now=NOW) == meaning


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1_0", None),
        ("٣", None),
        ("0", 0.0),
        (" 12 ", 12.0),
        ("9" * 30, None),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 00:01:00", 60.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Thu, 99 Jan 2026 00:01:00 GMT", None),
    ],
)
def test_when_to_come_back(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, NOW) == seconds


@given(st.text(max_size=40))
def test_no_header_breaks_the_reading(text: str) -> None:
    found = retry_after_s(text, NOW)
    assert found is None or found >= 0


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0, 200)), max_size=300))
def test_attempts_end(outcomes: list[tuple[bool, float | None]]) -> None:
    attempts, fruitless = Attempts(), 0
    for number, (brought, asked) in enumerate(outcomes, start=1):
        fruitless = 0 if brought else fruitless + 1
        wait = attempts.next_wait_s(brought_bytes=brought, asked_s=asked)
        spent = fruitless >= MOST_FRUITLESS or number >= MOST_ATTEMPTS
        too_long = asked is not None and asked > LONGEST_WAIT_S
        assert (wait is None) == (spent or too_long)
        if wait is None:
            return
        assert 0 <= wait <= LONGEST_WAIT_S


def test_waits_grow_while_nothing_comes() -> None:
    attempts = Attempts()
    waits = [attempts.next_wait_s(brought_bytes=False) for _ in range(MOST_FRUITLESS - 1)]
    assert all(before is not None and after == 2 * before for before, after in pairwise(waits))


@given(st.lists(st.tuples(st.integers(1, 2**20), st.floats(0, 20)), max_size=200))
def test_the_last_source_is_never_too_slow(arrivals: list[tuple[int, float]]) -> None:
    pace = Pace(AS_THE_LAST)
    now = 0.0
    for added, later in arrivals:
        now += later
        assert not pace.is_too_slow(added, now)


@pytest.mark.parametrize("rate", [100, 4_000, 4_400, 100_000])
def test_a_drip_is_too_slow_for_whoever_has_another_source(rate: int) -> None:
    pace, least = Pace(WITH_ANOTHER), WITH_ANOTHER.window_bytes
    slow_at = [second for second in range(200) if pace.is_too_slow(rate, float(second))]
    assert slow_at[:1] == ([] if rate * WINDOW_S >= least else [WINDOW_S])


def test_every_window_counts_for_itself_and_begins_with_the_first_byte() -> None:
    pace, least = Pace(WITH_ANOTHER), WITH_ANOTHER.window_bytes
    assert not pace.is_too_slow(1, 1000.0)
    assert not pace.is_too_slow(100 * least, 1000.0 + WINDOW_S)
    assert not pace.is_too_slow(least - 2, 1000.0 + 1.5 * WINDOW_S)
    assert pace.is_too_slow(1, 1000.0 + 2 * WINDOW_S)


def test_the_mirror_comes_first_and_the_token_is_the_endpoints() -> None:
    sources = Sources("https://hub.example/", "http://mirror:8080/hf/", "t")
    assert sources.addresses("org/a b/resolve/x/m#1.bin") == [
        Address("http://mirror:8080/hf/org/a%20b/resolve/x/m%231.bin", setting="downloads.mirror"),
        Address("https://hub.example/org/a%20b/resolve/x/m%231.bin", "t", "downloads.endpoint", hub=True),
    ]


@pytest.mark.parametrize(
    ("source", "token"),
    [
        ("https://hub.example/x", "t"),
        ("http://hub.example/x", None),
        ("https://hub.example.evil/x", None),
        ("https://hub.example:444/x", None),
        ("https://other/x", None),
        ("HTTPS://hub.example/x", "t"),
    ],
)
def test_an_address_is_asked_as_it_is_and_gets_the_token_only_on_the_endpoint(source: str, token: str | None) -> None:
    (address,) = Sources("https://hub.example", "http://mirror", "t").addresses(source)
    assert (address.url, address.token, address.remedy) == (source, token, "check the address")
    assert ("HF_TOKEN" in address.login_remedy) == (token is not None)


@pytest.mark.parametrize("address", ["http://h/a\r\nX: y", "http://\th/", "http://h/\x7f", "http://h/\0"])
def test_an_address_that_parsers_would_change_is_at_fault(address: str) -> None:
    assert "control character" in (address_fault(address) or "")


@pytest.mark.parametrize(
    ("holder", "shown", "remedy"),
    [
        (Holder("job", "models-download-8-1"), "download 'models-download-8-1'", "synapse-host models cancel models-d"),
        (Holder("job", "embed-8-1"), "job 'embed-8-1'", "synapse-host jobs cancel embed-8-1"),
        (Holder("loaded", "tiny-metal"), "loaded model 'tiny-metal'", "synapse-opctl unload tiny-metal"),
        (Holder("request", "lease-1"), "request 'lease-1'", "wait for it"),
        (Holder("self_check", "c"), "self-check 'c'", "wait for it"),
    ],
)
def test_a_holder_is_named_with_what_makes_it_let_go(holder: Holder, shown: str, remedy: str) -> None:
    assert holder.shown == shown
    assert remedy in holder.remedy


def test_messages_show_no_secret_of_an_address() -> None:
    address = Address("https://me:pw@[::1]:8443/a/b?sig=secret#f", "t-secret")
    assert address.shown == "https://[::1]:8443/a/b"
    assert "secret" not in repr(Sources("https://e", None, "t-secret")) + repr(Address("https://e", "t-secret"))


def test_pins_are_told_apart_by_host_and_purpose() -> None:
    owners = [
        pin_owners.install_owner("host-a", "gte", "d" * 64),
        pin_owners.download_owner("host-a", "j"),
        pin_owners.reuse_owner("host-a", "j"),
        pin_owners.operator_owner("host-a"),
        pin_owners.model_owner("host-a", "m/x"),
    ]
    assert [pin_owners.purpose_of(owner, "host-a") for owner in owners] == [
        ("install", f"gte/{'d' * 64}"),
        ("download", "j"),
        ("reuse", "j"),
        ("operator", ""),
        ("model", "m/x"),
    ]
    for owner in [*owners, "host-a"]:
        assert pin_owners.belongs_to(owner, "host-a")
        assert not pin_owners.belongs_to(owner, "host-")
        assert not pin_owners.belongs_to(f"x{owner}", "host-a")
    assert pin_owners.purpose_of("host-ab/operator", "host-a") is None
    assert pin_owners.purpose_of("host-a", "host-a") is None
