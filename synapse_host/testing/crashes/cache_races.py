"""One of several processes that share a model cache and do whatever they like in it. Run as a program.

    python -m synapse_host.testing.crashes.cache_races DIRECTORY HOST SEED STEPS

It keeps a few contents pinned for a while, reads others under a lease, makes packages of them and collects all the time
with no grace at all. It ends with an error where anything it pinned, leased or claimed is not there and whole. The
last line printed is a JSON object: how often each thing was done.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.errors import ArtifactInvalid, InvalidRequest

CONTENTS = {hashlib.sha256(text).hexdigest(): text for text in (f"content {n} ".encode() * 3000 for n in range(6))}
#: Contents one process keeps pinned at most.
_MOST_PINNED = 3
_TOOLCHAIN = {"engine": "maker", "version": "1"}


class Resident:
    """One host of those that share the cache."""

    def __init__(self, root: Path, host: str, seed: int) -> None:
        self.cache = BlobCache.open(root, host)
        self.dice = random.Random(f"{host} {seed}")  # noqa: S311 - moments, not secrets
        self.pinned: set[str] = set()
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Do one thing at random."""
        deed = self.dice.choice((self.bring, self.read, self.make, self.collect, self.let_go))
        if deed(self.dice.choice(list(CONTENTS))):
            self.done[deed.__name__] += 1
        for digest in self.pinned:
            assert self.cache.find(digest) is not None, f"{self.cache.owner} pins {digest} and it is gone"

    def bring(self, digest: str) -> bool:
        """Write content, pinned; or pin what another host brought."""
        if len(self.pinned) == _MOST_PINNED:
            return False
        try:
            self.cache.pin(digest)
        except InvalidRequest:
            with self.cache.ingest() as ingest:
                for at in range(0, len(CONTENTS[digest]), 8000):
                    ingest.write(CONTENTS[digest][at : at + 8000])
                ingest.commit(name="content", source_url="", owner=self.cache.owner, expected_sha256=digest)
        self.pinned.add(digest)
        return True

    def read(self, digest: str) -> bool:
        """Read what is here, whoever brought it, while others collect."""
        try:
            lease = self.cache.lease(digest)
        except ArtifactInvalid:
            assert digest not in self.pinned
            return False
        with lease:
            for _ in range(3):
                assert self.cache.path(digest).read_bytes() == CONTENTS[digest], f"{digest} went under its reader"
                time.sleep(0)
        return True

    def make(self, digest: str) -> bool:
        """Find packages of content whole, and make another."""
        claimed = self.cache.claim_derived(digest, _TOOLCHAIN)
        if claimed is None:
            return False
        with claimed:
            for package in claimed.folder.iterdir():
                assert (package / "code").read_bytes() == digest.encode() * 99, f"{package} is half there"
            package = claimed.folder / f"{self.cache.owner} {self.done['make'] % 3}"
            package.mkdir(exist_ok=True)
            (package / "code").write_bytes(digest.encode() * 99)
            if self.dice.random() < 0.5:
                claimed.keep()
        return True

    def collect(self, digest: str) -> bool:
        """Remove whatever nobody holds, this content or all."""
        with suppress(InvalidRequest):
            self.cache.collect(now_ms=time.time_ns() // 1_000_000, grace_ms=0, digest=self.dice.choice((digest, None)))
        return True

    def let_go(self, digest: str) -> bool:
        """Take a pin back, and remove the content where nobody else needs it."""
        if digest not in self.pinned:
            return False
        self.pinned.remove(digest)
        self.cache.release(digest, self.cache.owner, remove=self.dice.random() < 0.5)
        return True

    def leave(self) -> None:
        """Take every pin back."""
        for digest in self.pinned:
            self.cache.unpin(digest)


def main(root: Path, host: str, seed: int, steps: int) -> None:
    """Live in the cache for so many steps."""
    resident = Resident(root, host, seed)
    for _ in range(steps):
        resident.step()
    resident.leave()
    sys.stdout.write(json.dumps(resident.done) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
