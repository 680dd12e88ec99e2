from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.testing.fuzz.any_bytes import READERS, seeds, take
from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.messages import Ping


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_surprise_no_reader(data: bytes) -> None:
    take(data)


@given(st.sampled_from(seeds()), st.data())
def test_seeds_changed_in_one_place_surprise_no_reader(seed: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(seed)))
    take(seed[:place] + data.draw(st.binary(max_size=3)) + seed[place + 1 :])


def test_every_reader_takes_a_seed() -> None:
    taken = {take(seed) for seed in seeds()}
    assert taken - {None} == {reader.__name__ for reader in READERS}


def test_a_message_that_does_not_come_back_the_same_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ping = b"\x00" + codec.encode(Ping("p"))
    monkeypatch.setattr(codec, "encode", lambda message: b'{"type":"SHUTDOWN"}')
    with pytest.raises(AssertionError):
        take(ping)
