"""Greedy decoding over a session that keeps what it has read: pure, whatever computes the session.

The session is given each token once. Equal logits go to the lowest token id, which is the session's own rule (the
operation ``argmax``), so a continuation depends on the prompt and the model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol, TypeAlias

#: Tokens of a prompt read at once. A long prompt would otherwise be silent for minutes, and its mask grows with the
#: tokens read at once times those read before.
PIECE = 512

#: Told after each piece of work with the tokens it made: one, or none for a piece of the prompt before the last.
Worked: TypeAlias = Callable[[tuple[int, ...]], None]


class Session(Protocol):
    """One text being read, and what its attention keeps of it."""

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` (at least one) after all read before; the likeliest token to follow."""


def continued(
    session: Session, prompt: Sequence[int], stop_ids: Collection[int], most: int, worked: Worked
) -> tuple[list[int], Literal["stop", "length"]]:
    """The tokens after ``prompt``, at most ``most``, and why they end; a token that stops is not among them."""
    made: list[int] = []
    unread = _last_piece(session, prompt, worked)
    while len(made) < most:
        token = session.next_token(unread)
        if token in stop_ids:
            return made, "stop"
        made.append(token)
        worked((token,))
        unread = (token,)
    return made, "length"


def _last_piece(session: Session, prompt: Sequence[int], worked: Worked) -> Sequence[int]:
    """Read all pieces of the prompt but the last, whose next token is the first generated."""
    start = 0
    while len(prompt) - start > PIECE:
        session.next_token(prompt[start : start + PIECE])
        worked(())
        start += PIECE
    return prompt[start:]
