"""Greedy decoding over a session that keeps what it has read: pure, whatever computes the session.

The session is given each token once. Equal logits go to the lowest token id, which is the session's own rule (the
operation ``argmax``), so a continuation depends on the prompt and the model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol, TypeAlias

#: Told after each token how many there are and which it was.
Emitted: TypeAlias = Callable[[int, int], None]


class Session(Protocol):
    """One text being read, and what its attention keeps of it."""

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` (at least one) after all read before; the likeliest token to follow."""


def continued(
    session: Session, prompt: Sequence[int], stop_ids: Collection[int], most: int, emitted: Emitted
) -> tuple[list[int], Literal["stop", "length"]]:
    """The tokens after ``prompt``, at most ``most``, and why they end; a token that stops is not among them."""
    made: list[int] = []
    unread = prompt
    while len(made) < most:
        token = session.next_token(unread)
        if token in stop_ids:
            return made, "stop"
        made.append(token)
        emitted(len(made), token)
        unread = (token,)
    return made, "length"
