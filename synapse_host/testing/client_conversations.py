"""Conversations with a host's consumer socket that go wrong in every way a client could, beside one that goes well."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from synapse_host.framing import HEADER_BYTES, frame_header
from synapse_host.server.envelope import Hello, decode_frame
from synapse_host.server.malformed import MalformedFrame
from synapse_host.testing.fuzz.mutated_frames import FrameMaker, wire_bytes
from synapse_host.testing.raw_peer import DEADLINE_S, RawPeer

Tally = Counter[str]
_MAX_FRAME = 1024 * 1024

#: What a run must have reached to count as one.
HANDLERS = frozenset({"echoed", "embedded", "greeted", "refused", "malformed", "cut", "too large", "abandoned"})


async def fuzz_host(path: Path, frames: int, seed: int) -> Tally:
    """Send at least ``frames`` frames to the host at ``path``, which serves the methods of ``fake_methods``.

    After each conversation a client that was there from the start is answered. Raises ``AssertionError`` naming the
    seed.
    """
    maker, tally = FrameMaker(random.Random(seed)), Tally()  # noqa: S311
    good = await RawPeer.connect(path)
    try:
        while tally["frames"] < frames:
            try:
                await _conversation(path, maker, tally)
                answer = await good.ask({"id": tally["frames"], "method": "fake.echo", "params": {"value": "good"}})
                assert (answer["id"], answer["result"]["value"]) == (tally["frames"], "good")
            except Exception as fault:
                raise AssertionError(f"seed {seed}, after {tally['frames']} frames: {fault!r}") from fault
    finally:
        await good.close()
    return tally


async def _conversation(path: Path, maker: FrameMaker, tally: Tally) -> None:
    peer = await RawPeer.connect(path)
    try:
        for number in range(maker.draw.randint(1, 12)):
            payload = _frame(maker, number)
            await peer.stream.send(frame_header(len(payload), _MAX_FRAME) + payload)
            tally["frames"] += 1
            tally[_judge(payload, await peer.receive(), first=number == 0)] += 1
        await _leave(peer, maker, tally)
    finally:
        await peer.close()


def _frame(maker: FrameMaker, number: int) -> bytes:
    draw = maker.draw
    wire: dict[str, Any] = {"id": number, "method": "fake.echo", "params": {"value": draw.choice((1, "ä", None))}}
    if not number and draw.random() < 0.4:
        return wire_bytes({"hello": {"api": 1, "vectors": "json"}})
    match draw.randrange(8):
        case 0:
            wire |= {"method": "embed.query", "params": {"text": "the tide came in"}}
        case 1:
            wire = {"hello": {"api": 1, "vectors": "json"}}
        case 2:
            wire = maker.wild(wire)
        case 3:
            wire["params"] = maker.wild(wire["params"])
        case 4:
            return maker.broken(wire_bytes(wire))
        case _:
            pass
    return wire_bytes(wire)


def _judge(payload: bytes, answer: dict[str, Any], *, first: bool) -> str:
    """What was reached; raises ``AssertionError`` where the answer is not the one to ``payload``."""
    try:
        asked = decode_frame(payload)
    except MalformedFrame as fault:
        asked, said = None, fault.id
    if asked is None or (isinstance(asked, Hello) and not first):
        code = answer["error"]["code"]
        _equal((code, answer["id"]), ("invalid_request", said if asked is None else None))
        return "malformed"
    if isinstance(asked, Hello):
        return "greeted" if "hello" in answer else "nothing"
    _equal(answer["id"], asked.id)
    if "error" in answer or "error" in answer["result"]:
        return "refused"
    return "embedded" if "vectors" in answer["result"] else "echoed"


def _equal(found: object, expected: object) -> None:
    assert found == expected, f"{found!r} is not {expected!r}"


async def _leave(peer: RawPeer, maker: FrameMaker, tally: Tally) -> None:
    """Go away in the middle of a frame, with an answer under way, or with a header no frame may have."""
    match maker.draw.randrange(3):
        case 0:
            await peer.stream.send(b"\x64\x00\x00\x00{")
            tally["cut"] += 1
        case 1:
            await peer.stream.send(b"\xff" * HEADER_BYTES)
            with anyio.fail_after(DEADLINE_S):
                answer = await peer.receive()
            _equal(answer["error"]["code"], "invalid_request")
            assert await peer.is_closed()
            tally["too large"] += 1
        case _:
            payload = wire_bytes({"id": 1, "method": "fake.echo", "params": {"value": "x" * 1000}})
            await peer.stream.send(frame_header(len(payload), _MAX_FRAME) + payload)
            tally["abandoned"] += 1
