"""How a long list of texts becomes requests an inline batch takes. Pure.

Texts of like length go together, so that a backend that pads pads little; the longest go first, so that the last
request to finish is a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synapse_host.errors import InvalidRequest

#: The host's default inline limits; a smaller setting is met by splitting what it refuses.
MAX_ITEMS = 64
MAX_TOKENS = 8192
#: UTF-8 bytes a token stands for at least, for planning: prose has 4 to 5, code and symbols about 3.
_BYTES_PER_TOKEN = 3
#: Tokens a tokenizer adds around a text.
_SPECIAL_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Batch:
    """The places, in the caller's list, of the texts of one request."""

    places: tuple[int, ...]

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of half the texts each."""
        middle = (len(self.places) + 1) // 2
        return Batch(self.places[:middle]), Batch(self.places[middle:])


def estimated_tokens(text: str, row_ceiling: int | None = None) -> int:
    """Tokens a text probably has; never more than ``row_ceiling``, where the lane truncates."""
    estimate = len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN + _SPECIAL_TOKENS
    return estimate if row_ceiling is None else min(estimate, row_ceiling)


def plan_batches(
    texts: Sequence[str],
    *,
    row_ceiling: int | None = None,
    max_items: int = MAX_ITEMS,
    max_tokens: int = MAX_TOKENS,
) -> list[Batch]:
    """Cut ``texts`` into batches of at most ``max_items`` texts and ``max_tokens`` estimated tokens.

    A text that alone passes ``max_tokens`` gets a batch of its own.
    """
    sizes = [estimated_tokens(text, row_ceiling) for text in texts]
    batches: list[Batch] = []
    places: list[int] = []
    total = 0
    for place in sorted(range(len(texts)), key=lambda place: -sizes[place]):
        if places and (len(places) == max_items or total + sizes[place] > max_tokens):
            batches.append(Batch(tuple(places)))
            places, total = [], 0
        places.append(place)
        total += sizes[place]
    if places:
        batches.append(Batch(tuple(places)))
    return batches


def is_too_large(refusal: InvalidRequest) -> bool:
    """Whether a refusal names a limit of size, so that half the batch may pass."""
    return any(key.startswith("max_") for key in refusal.details or ())
