"""A lane for durable jobs that computes nothing: its vectors name their items, and it can be told to misbehave."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import anyio
import anyio.lowlevel

from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.hookspecs import BatchPolicy
from synapse_host.tokenization.model_tokenizer import EncodedText


class CountingEncoder:
    """One token for each word, as its length; a text of more than ``keep`` words is cut."""

    def __init__(self, keep: int = 64) -> None:
        self._keep = keep

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """The tokens of each text."""
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> EncodedText:
        words = text.split() or [text]
        ids = [len(word) for word in words[: self._keep]]
        digest = hashlib.sha256(text.encode()).hexdigest()
        cut = len(words) > self._keep
        content = hashlib.sha256(" ".join(words[: self._keep]).encode()).hexdigest() if cut else digest
        return EncodedText(ids, len(words), len(ids), cut, digest, content)


def named_vector(item_id: str, dims: int) -> bytes:
    """The vector of an item: its digest as numbers, over and over."""
    number = struct.unpack("<i", hashlib.sha256(item_id.encode()).digest()[:4])[0] / 2**31
    return array("f", [number] * dims).tobytes()


@cache
def _ones(size: int) -> bytes:
    return array("f", [1.0] * size).tobytes()


class NoOpLane:
    """``computed`` are the ids of each group in turn. ``crash_on`` are ids that kill the worker, so many times each.

    ``hold`` set to an event makes every group wait for it; ``refusal`` is raised by ``serving`` where it is set.
    ``crashes_in_a_row`` is the most there were without a computed group between. ``plain`` vectors are all ones, for
    measuring.
    """

    def __init__(self, dims: int = 4, policy: BatchPolicy | None = None, *, plain: bool = False) -> None:
        self.dims = dims
        self.policy = policy or BatchPolicy(8, 3072)
        self.buckets: tuple[int, ...] | None = None
        self.encoder = CountingEncoder()
        self.computed: list[list[str]] = []
        self.crash_on: dict[str, int] = {}
        self.crashes_in_a_row = self._crashes = 0
        self.hold: anyio.Event | None = None
        self.entered = anyio.Event()
        self.refusal: SynapseError | None = None
        self.load_refusals: list[SynapseError] = []
        self.loads = 0
        self.holders: list[Mapping[str, str]] = []
        self._plain = plain

    def serving(self, _job: object) -> NoOpLane:
        """The lane, unless it is to refuse."""
        if self.refusal is not None:
            raise self.refusal
        return self

    @contextmanager
    def lease(self, holder: Mapping[str, str] | None = None) -> Iterator[None]:
        """Note the holder for the length of the block."""
        self.holders.append(holder or {})
        try:
            yield
        finally:
            self.holders.pop()

    async def load(self) -> None:
        """Count a load; raises the next of ``load_refusals``."""
        self.loads += 1
        if self.load_refusals:
            raise self.load_refusals.pop(0)

    async def embed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str]) -> tuple[int, bytes]:
        """Vectors, or what the lane was told to do."""
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        for item_id in item_ids:
            if self.crash_on.get(item_id, 0) > 0:
                self.crash_on[item_id] -= 1
                self._crashes += 1
                self.crashes_in_a_row = max(self.crashes_in_a_row, self._crashes)
                raise EngineCrashed(f"the worker died on {len(item_ids)} rows", details={"reason": "exited"})
        self._crashes = 0
        if self._plain:
            return self.dims, _ones(len(rows) * self.dims)
        self.computed.append(list(item_ids))
        return self.dims, b"".join(named_vector(item_id, self.dims) for item_id in item_ids)

    async def begun(self) -> None:
        """Wait until one group is computed and the next is on the device; every one was to be held."""
        with anyio.fail_after(30):
            await self.entered.wait()
            gate, self.hold = self.hold, anyio.Event()
            assert gate is not None
            gate.set()
            while not self.computed:
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
