"""What a write leaves over: whatever a socket took, the rest is sent in order and nothing of it twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synapse_host.framing import Buffer, unsent

PARTS = st.lists(
    st.binary(max_size=9).flatmap(lambda data: st.sampled_from([data, bytearray(data), memoryview(data)])), max_size=5
)


@given(PARTS, st.data())
def test_what_was_sent_and_what_is_left_are_the_parts(parts: list[Buffer], data: st.DataObject) -> None:
    whole = b"".join(parts)
    sent = data.draw(st.integers(0, len(whole)))
    assert whole[:sent] + b"".join(unsent(parts, sent)) == whole


def test_nothing_is_left_once_all_is_sent() -> None:
    assert unsent([b"head", b"", memoryview(b"body")], 8) == []
