"""Frames for fuzzing, made from a seed: lawful ones, ones with a single known fault, and ones broken at random.

Much faster than hypothesis, which shrinks and explores instead: for counts in the millions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from synapse_host.testing.fuzz.message_strategies import SAMPLES, UNLAWFUL, shape_of
from synapse_host.worker_protocol.messages import Message

#: Values that have a meaning somewhere, and their neighbours.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**64 - 1, 2**64, 10**400, 0.5, 3.0, -0.0, 1e308),
    *("", "x" * 65, "x" * 5000, "\ud800", "\x00", "PING", "setup", [], {}, [[]], {"a": 1}, [None], {"": ""}),
    *(value for shape in SAMPLES for value in (SAMPLES[shape], *UNLAWFUL[shape])),
)
_ODD_BYTES = (b"", b"{", b"}", b"[" * 3000, b'"', b"\\ud800", b"\xff", b"\x00", b"NaN", b"1e999", b"-", b",", b"{}{}")


class FrameMaker:
    """Draws payloads with ``draw``; two makers with equal seeds draw the same ones."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self._layouts: dict[type[Message], list[tuple[str, str, bool]]] = {}

    def lawful(self, kind: type[Message]) -> dict[str, Any]:
        """The fields of a lawful message of ``kind``; each optional one is there or not."""
        wire: dict[str, Any] = {"type": kind.TYPE} if kind.TYPE else {}
        for name, shape, required in self._layout(kind):
            if required or self.draw.random() < 0.7:
                wire[name] = SAMPLES[shape]
        return wire

    def with_one_fault(self, kind: type[Message]) -> dict[str, Any]:
        """A message of ``kind`` that the other side must refuse: a wrong value, a missing field or one too many."""
        wire = self.lawful(kind)
        layout = self._layout(kind)
        choice = self.draw.randrange(4) if layout else 3
        if choice < 2:
            name, shape, _ = self.draw.choice(layout)
            wire[name] = self.draw.choice(UNLAWFUL[shape])
        elif choice == 2 and (needed := [name for name, _, required in layout if required]):
            del wire[self.draw.choice(needed)]
        else:
            wire[self.draw.choice(("mood", "Type", "req_ID", ""))] = self.draw.choice(ODD_VALUES)
        return wire

    def wild(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """``wire`` with any value anywhere."""
        changed = dict(wire)
        for _ in range(self.draw.randint(1, 2)):
            changed[self.draw.choice([*changed, "surprise"])] = self.draw.choice(ODD_VALUES)
        return changed

    def broken(self, payload: bytes) -> bytes:
        """``payload`` cut, changed, doubled or replaced, without regard for what it means."""
        draw, place = self.draw, self.draw.randrange(len(payload) + 1)
        match draw.randrange(6):
            case 0:
                return payload[:place]
            case 1:
                return payload[:place] + draw.randbytes(draw.randint(1, 4)) + payload[place + 1 :]
            case 2:
                return payload[:place] + draw.choice(_ODD_BYTES) + payload[place:]
            case 3:
                return payload[place:] + payload[:place]
            case 4:
                return payload + payload[place:]
            case _:
                return draw.randbytes(draw.randint(0, 40))

    def chunks(self, data: bytes, most: int = 8) -> list[bytes]:
        """``data`` cut at random places, as a socket delivers it."""
        cuts = sorted(self.draw.randrange(len(data) + 1) for _ in range(self.draw.randint(0, most)))
        ends = zip([0, *cuts], [*cuts, len(data)], strict=True)
        return [data[start:end] for start, end in ends if end > start]

    def pick(self, kinds: Sequence[type[Message]]) -> type[Message]:
        """One of ``kinds``."""
        return self.draw.choice(kinds)

    def _layout(self, kind: type[Message]) -> list[tuple[str, str, bool]]:
        if kind not in self._layouts:
            self._layouts[kind] = [
                (item.name, shape_of(kind, item.name), item.default is MISSING and item.default_factory is MISSING)
                for item in fields(kind)
            ]
        return self._layouts[kind]


def wire_bytes(wire: Mapping[str, Any]) -> bytes:
    """The JSON of ``wire``, whatever is in it."""
    return json.dumps(wire).encode()
