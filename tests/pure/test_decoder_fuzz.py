"""Whatever bytes a peer sends, what reads them answers with its own exception or with a lawful value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from synapse_host.framing import HEADER_BYTES, FrameDecoder, FrameTooLarge, frame_header
from synapse_host.testing.fuzz.decoder_fuzz import HANDLERS, fuzz_decoders
from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.field_checks import FieldCheck
from synapse_host.worker_protocol.messages import Load

#: Two million frames; twenty with ``make soak``.
SEEDS, FRAMES = (1, 2, 3, 4), 500_000
REACHED = 1_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_decoder_is_surprised_and_none_is_left_out(seed: int) -> None:
    tally = fuzz_decoders(FRAMES, seed)
    print(f"{tally.total()} frames, reached least: {min((tally[name], name) for name in HANDLERS)}")
    assert {name: tally[name] for name in HANDLERS if tally[name] < REACHED} == {}


def plant(monkeypatch: pytest.MonkeyPatch, check: FieldCheck) -> None:
    layout = {**codec._LAYOUTS[Load].fields, "format": (check, True)}
    monkeypatch.setitem(codec._LAYOUTS, Load, codec._layout_of(layout))


def test_the_fuzz_sees_a_refused_field(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = FieldCheck(lambda value: False, "nothing")
    plant(monkeypatch, refusing)
    with pytest.raises(AssertionError, match=r"seed 3, after .* was refused"):
        fuzz_decoders(10_000, 3)


def test_the_fuzz_sees_a_value_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    accepting = FieldCheck(lambda value: value is not None, "anything")
    plant(monkeypatch, accepting)
    with pytest.raises(AssertionError, match=r"seed 3, after .* was taken for"):
        fuzz_decoders(10_000, 3)


def test_the_fuzz_sees_a_frame_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    take = FrameDecoder._take
    monkeypatch.setattr(FrameDecoder, "_take", lambda self, count: take(self, count)[: max(4, count - 1)])
    with pytest.raises(AssertionError, match="seed 3"):
        fuzz_decoders(10_000, 3)


class FramesInPieces(RuleBasedStateMachine):
    """A decoder that is fed and emptied in any order, beside the plain list of what it was sent."""

    LIMIT = 64

    def __init__(self) -> None:
        super().__init__()
        self.decoder = FrameDecoder(self.LIMIT)
        self.sent: list[bytes] = []
        self.waiting = b""
        self.unfed = 0

    @rule(payload=st.binary(max_size=LIMIT))
    def send(self, payload: bytes) -> None:
        self.sent.append(payload)
        self.waiting += frame_header(len(payload), self.LIMIT) + payload
        self.unfed = len(self.waiting)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        count = data.draw(st.integers(1, len(self.waiting)))
        self.decoder.feed(self.waiting[:count])
        self.waiting = self.waiting[count:]

    @rule()
    def read(self) -> None:
        frame = self.decoder.next_frame()
        if frame is not None:
            assert frame == self.sent.pop(0)

    @precondition(lambda self: not self.waiting)
    @rule()
    def read_all(self) -> None:
        while self.sent:
            self.read()
        assert self.decoder.next_frame() is None
        assert (self.decoder.pending_bytes, self.decoder.wanted_bytes) == (0, HEADER_BYTES)

    @invariant()
    def never_wants_more_than_is_coming(self) -> None:
        if self.waiting and self.decoder.wanted_bytes:
            assert self.decoder.wanted_bytes <= len(self.waiting) or self.decoder.wanted_bytes <= HEADER_BYTES

    @invariant()
    def holds_no_more_than_was_sent(self) -> None:
        assert self.decoder.pending_bytes <= sum(HEADER_BYTES + len(payload) for payload in self.sent)


FramesInPieces.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_frames_come_out_whole_however_they_arrive = FramesInPieces.TestCase


def test_a_frame_over_the_limit_is_refused_at_its_header() -> None:
    decoder = FrameDecoder(FramesInPieces.LIMIT)
    decoder.feed((FramesInPieces.LIMIT + 1).to_bytes(HEADER_BYTES, "little"))
    with pytest.raises(FrameTooLarge):
        decoder.next_frame()
