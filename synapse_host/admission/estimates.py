"""What an exchange with a lane's worker will take, learned from those that are over. Pure; figures are milliseconds.

For each operation and size class (sizes between two powers of two) a running mean of the milliseconds a token takes:
a long text costs more for each token than a short one, and a full group less than a lone row. A size that was never
seen is judged by the nearest that was. Nothing was seen: the estimate of the settings.
"""

from __future__ import annotations

from collections.abc import Iterable

#: No exchange with a worker is expected to take less.
FLOOR_MS = 1.0
#: Weight of the newest measurement, and the most it may differ from what was expected to count in full.
NEWEST = 0.2
OUTLIER = 3.0
#: What is left of an estimate that a request was refused for: nothing would ever correct it otherwise.
DOUBTED = 0.9
#: Exchanges of a size after which what it takes is known: the first of them then has a sixth of the weight.
ENOUGH = 8


class Costs:
    """What the operations of one lane take; ``unknown_ms`` until one was seen."""

    def __init__(self, unknown_ms: float) -> None:
        self._unknown_ms = unknown_ms
        #: operation -> size class -> milliseconds a token.
        self._rates: dict[str, dict[int, float]] = {}
        #: operation -> size class -> how many were measured, ``ENOUGH`` at most.
        self._measured: dict[str, dict[int, int]] = {}
        #: Tokens a generation makes, on average.
        self._generated: float | None = None

    def ms(self, operation: str, tokens: int) -> float:
        """What an exchange of so many tokens is expected to take."""
        rates = self._rates.get(operation)
        if not rates:
            return self._unknown_ms
        return max(FLOOR_MS, rates[_nearest(rates, tokens.bit_length())] * tokens)

    def known(self, operation: str, groups: Iterable[int]) -> bool:
        """Whether enough exchanges of the sizes of ``groups`` were measured for a refusal to rest on them."""
        measured = self._measured.get(operation, {})
        return all(measured.get(tokens.bit_length(), 0) >= ENOUGH for tokens in groups)

    def learn(self, operation: str, tokens: int, took_ms: float) -> None:
        """An exchange of so many tokens took ``took_ms``."""
        rates, size = self._rates.setdefault(operation, {}), tokens.bit_length()
        measured = self._measured.setdefault(operation, {})
        measured[size] = min(ENOUGH, measured.get(size, 0) + 1)
        rate = took_ms / max(1, tokens)
        known = rates.get(size)
        if known is None:
            rates[size] = rate
            return
        within = min(max(rate, known / OUTLIER), known * OUTLIER)
        rates[size] = known + NEWEST * (within - known)

    def generation_tokens(self, most: int) -> int:
        """How many tokens a generation of at most ``most`` is expected to make; all of them while none was seen."""
        return most if self._generated is None else min(most, max(1, round(self._generated)))

    def learn_generation(self, tokens: int, took_ms: float) -> None:
        """A generation made so many tokens and took ``took_ms``, reading its prompt included."""
        known = self._generated
        self._generated = tokens if known is None else known + NEWEST * (tokens - known)
        self.learn("generate", max(1, tokens), took_ms)

    def doubt(self, operation: str, groups: Iterable[int]) -> None:
        """A request of groups of so many tokens was refused on an idle device because of what this expects."""
        rates = self._rates.get(operation)
        if rates:
            for size in {tokens.bit_length() for tokens in groups}:
                rates[size] = rates[_nearest(rates, size)] * DOUBTED


def _nearest(rates: dict[int, float], size: int) -> int:
    """The size class nearest to ``size``; of two as near, the larger."""
    return size if size in rates else min(rates, key=lambda known: (abs(known - size), -known))
