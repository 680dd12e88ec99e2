"""What a request key is bound to: one digest over everything that decides a job's results (wire contract section 9).

Each field goes in with its length before it, so that no two different requests spell the same bytes. Time limits are
left out: a caller may ask again with more patience. Remote jobs add their profile and handle behind the two flag bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synapse_host.identity.canonical_json import canonical_json

_VERSION = b"synapse-request-digest-v1"
_ABSENT, _PRESENT = b"\0", b"\1"
#: The constraints that decide what is computed or whether it may be.
BOUND_CONSTRAINTS = (
    "target_fingerprint",
    "required_fingerprint",
    "allow_equivalent",
    "required_epoch",
    "accept_declared",
)


def request_digest(
    operation: str,
    model_id: str,
    constraints: Mapping[str, Any],
    item_ids: Sequence[str],
    content_sha256: Sequence[str],
    *,
    remote_profile_hash: str | None = None,
    logical_handle: str | None = None,
) -> str:
    """The digest of one batch, 64 hex digits; ``item_ids`` and ``content_sha256`` are in the order of the request."""
    digest = hashlib.sha256()
    take = digest.update
    _field(take, _VERSION)
    _field(take, operation.encode())
    _field(take, model_id.encode())
    for remote in (remote_profile_hash, logical_handle):
        _optional(take, remote)
    _field(take, canonical_json({name: constraints.get(name) for name in BOUND_CONSTRAINTS}))
    take(len(item_ids).to_bytes(8, "big"))
    for item_id, content in zip(item_ids, content_sha256, strict=True):
        encoded = item_id.encode()
        take(b"%b%b%b" % (len(encoded).to_bytes(8, "big"), encoded, bytes.fromhex(content)))
    return digest.hexdigest()


def _field(take: Callable[[bytes], None], value: bytes) -> None:
    take(len(value).to_bytes(8, "big") + value)


def _optional(take: Callable[[bytes], None], value: str | None) -> None:
    if value is None:
        take(_ABSENT)
    else:
        take(_PRESENT)
        _field(take, value.encode())
