"""Cuts one request's rows into the groups a worker receives, without I/O.

Rows are sorted by length so that a group pads little; a group ends at the policy's rows or padded tokens. A row
longer than the whole budget runs alone. The order of groups carries no meaning: results are put back by index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from synapse_host.hookspecs import BatchPolicy


def padded_length(count: int, ladder: Sequence[int] | None) -> int:
    """Length a row of ``count`` tokens is computed at: the smallest rung that holds it, or itself."""
    if not ladder:
        return count
    at = bisect_left(ladder, count)
    return ladder[at] if at < len(ladder) else count


def group_rows(
    counts: Sequence[int], policy: BatchPolicy, ladder: Sequence[int] | None = None, *, alike: bool = False
) -> list[list[int]]:
    """Indices of ``counts`` in groups of at most ``policy.rows`` rows and ``policy.token_budget`` padded tokens.

    The rows of a group are padded to one length where they must be ``alike``.
    """
    groups: list[list[int]] = []
    group: list[int] = []
    tokens = last = 0
    for index in sorted(range(len(counts)), key=counts.__getitem__):
        length = padded_length(counts[index], ladder)
        full = len(group) == policy.rows or tokens + length > policy.token_budget
        if group and (full or (alike and length != last)):
            groups.append(group)
            group, tokens = [], 0
        group.append(index)
        tokens += length
        last = length
    if group:
        groups.append(group)
    return groups
