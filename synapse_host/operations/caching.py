"""cache.pin and cache.gc: what a person keeps in the model cache, and giving up what nothing needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from pydantic import Field, StrictBool, StrictInt, StrictStr

from synapse_host.cache.collection import Outcome
from synapse_host.cache.collection_rule import Keep, Mark
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.cache.pin_owners import operator_owner
from synapse_host.downloads.room import DownloadRoom
from synapse_host.downloads.single_files import fetch_pinned, is_pinned_address, read_in, tokenizer_digest
from synapse_host.errors import InvalidRequest, QueueFull
from synapse_host.operations.constraints import Name, Params
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object

Digest = Annotated[StrictStr, Field(pattern="^(sha256:)?[0-9a-f]{64}$")]
#: When to ask again for content that a reader holds (original facts 2.2).
HELD_RETRY_MS = 250


class PinParams(Params):
    """What to pin: content that is here by its digest, or a source whose content has that digest."""

    digest: Digest | None = None
    source_url: Annotated[StrictStr, Field(min_length=1, max_length=4096)] | None = None
    expected_digest: Digest | None = None
    format: Name = "unknown"
    tokenizer_path: Annotated[StrictStr, Field(min_length=1, max_length=4096)] | None = None
    module_id: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None
    pinned: StrictBool = True


class CollectParams(Params):
    """One digest, or everything; and how long content stays once it is marked to go."""

    digest: Digest | None = None
    grace_ms: Annotated[StrictInt, Field(ge=0, le=30 * 86_400_000)] = 60_000


@value_object
class CachingService:
    """Pins and collects. ``now_ms`` is the time of the epoch."""

    room: DownloadRoom
    now_ms: Callable[[], int]
    module_generation: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("cache.pin", "mutate", PinParams, self.pin),
            Method("cache.gc", "mutate", CollectParams, self.collect),
        ]

    async def pin(self, params: PinParams, context: RequestContext) -> Reply:
        """Keep content until the pin is taken back with ``pinned: false``."""
        if (params.digest is None) == (params.source_url is None):
            raise InvalidRequest("cache.pin takes exactly one of digest and source_url", channel=True)
        await self.room.require_cache()
        cache = self.room.cache
        owner = operator_owner(cache.owner) + (f"/{params.module_id}" if params.module_id else "")
        if params.digest is None:
            artifact = await self._bring(params, owner)
        elif params.pinned:
            artifact = await anyio.to_thread.run_sync(cache.pin, params.digest, owner)
        else:
            artifact = await anyio.to_thread.run_sync(self._unpin, params.digest, owner)
        return self._answer(cache_root=str(cache.layout.root), artifact=_artifact(artifact))

    async def collect(self, params: CollectParams, context: RequestContext) -> Reply:
        """Mark what nothing pins, and remove what was marked a grace ago."""
        await self.room.require_cache()
        work = partial(self.room.cache.collect, now_ms=self.now_ms(), grace_ms=params.grace_ms, digest=params.digest)
        outcomes = await anyio.to_thread.run_sync(work)
        if params.digest is not None and _is_held(outcomes[0]):
            raise QueueFull(
                f"content {params.digest} is being read; ask again when its reader is done",
                details={"digest": params.digest},
                retry_after_ms=HELD_RETRY_MS,
            )
        return self._answer(outcomes=[_outcome(outcome) for outcome in outcomes])

    async def _bring(self, params: PinParams, owner: str) -> BlobMetadata:
        source, expected = params.source_url or "", (params.expected_digest or "").removeprefix("sha256:") or None
        if not params.pinned:
            raise InvalidRequest(
                "pinned: false takes a digest, not a source_url; name the digest", details={"parameter": "source_url"}
            )
        tokenizer = None
        if params.tokenizer_path is not None:
            tokenizer = await anyio.to_thread.run_sync(tokenizer_digest, Path(params.tokenizer_path))
        cache = self.room.cache
        if is_pinned_address(source, expected):
            brought = await fetch_pinned(self.room, source, expected or "", owner)
        else:
            brought = await anyio.to_thread.run_sync(read_in, cache, source, expected, owner)
        describe = partial(cache.describe, file_format=params.format, sanitized_tokenizer_digest=tokenizer)
        await anyio.to_thread.run_sync(describe, brought.digest)
        return await anyio.to_thread.run_sync(cache.pin, brought.digest, owner)

    def _unpin(self, digest: str, owner: str) -> BlobMetadata:
        self.room.cache.unpin(digest, owner)
        found = self.room.cache.find(digest)
        if found is None:
            raise InvalidRequest(
                f"digest {digest} has no content in the model cache at {self.room.cache.layout.root}",
                details={"digest": digest},
            )
        return found

    def _answer(self, **payload: Any) -> Reply:
        return Reply({"module_generation": self.module_generation, **payload})


def _artifact(found: BlobMetadata) -> dict[str, Any]:
    """What the cache knows of content; digests as the contract's cache writes them."""
    shown: dict[str, Any] = {
        "digest": f"sha256:{found.digest}",
        "size_bytes": found.size,
        "source_url": found.source_url,
        "format": found.format,
        "validation_state": "valid" if found.valid else "invalid",
        "pins": list(found.pins),
    }
    if found.sanitized_tokenizer_digest is not None:
        shown["sanitized_tokenizer_digest"] = found.sanitized_tokenizer_digest
    return shown


def _outcome(outcome: Outcome) -> dict[str, Any]:
    shown: dict[str, Any] = {"digest": f"sha256:{outcome.digest}"}
    match outcome.verdict:
        case Keep(reason):
            return {**shown, "outcome": "kept", "reason": reason}
        case Mark(_, delete_after_ms):
            return {**shown, "outcome": "marked", "delete_after_ms": delete_after_ms}
        case _:
            return {**shown, "outcome": "deleted", "freed_bytes": outcome.freed_bytes}


def _is_held(outcome: Outcome) -> bool:
    return outcome.verdict == Keep("shared_reader_or_gc_active")
