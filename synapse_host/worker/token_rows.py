"""The raw frame of a request as rows of token ids. Imported at the first one, because it needs numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from synapse_host.hookspecs import PluginError
from synapse_host.worker_protocol.frame_budget import ELEMENT_BYTES, row_counts
from synapse_host.worker_protocol.messages import Message

if TYPE_CHECKING:
    from synapse_host.hookspecs import TokenIds


def token_ids(request: Message, raw: bytes) -> TokenIds:
    """All ids of ``raw``; raises ``PluginError`` with ``invalid_request`` when it holds half an id."""
    if len(raw) % ELEMENT_BYTES:
        raise PluginError(
            "invalid_request", f"raw frame of {len(raw)} bytes after {request.TYPE} is no whole number of token ids"
        )
    return np.frombuffer(raw, dtype="<i4")


def counted_ids(request: Message, raw: bytes) -> TokenIds:
    """All ids of ``raw``; raises ``PluginError`` with ``invalid_request`` when ``request`` counts others."""
    counts = row_counts(request)
    if sum(counts) * ELEMENT_BYTES != len(raw):
        raise PluginError(
            "invalid_request",
            f"raw frame of {len(raw)} bytes does not hold the {sum(counts)} token ids that {request.TYPE} counts in "
            f"{len(counts)} rows",
        )
    return token_ids(request, raw)


def token_rows(request: Message, raw: bytes) -> list[TokenIds]:
    """The ids of each row, in order; raises as ``counted_ids``."""
    ids = counted_ids(request, raw)
    rows = []
    start = 0
    for count in row_counts(request):
        rows.append(ids[start : start + count])
        start += count
    return rows
