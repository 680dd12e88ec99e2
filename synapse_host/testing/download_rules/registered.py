"""The checks of download rules by name, and what each of them needs of a stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from synapse_host.errors import SynapseError

#: A check is given a folder of its own.
Check = Callable[[Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """One check and the rules it shows: each of them switched off makes it fail, and no other does."""

    name: str
    rules: frozenset[str]
    run: Check


CHECKS: dict[str, RuleCheck] = {}


def check(*rules: str) -> Callable[[Check], Check]:
    """Register a check of ``rules`` under its function's name."""

    def register(run: Check) -> Check:
        name = getattr(run, "__name__", "")
        assert name not in CHECKS, name
        CHECKS[name] = RuleCheck(name, frozenset(rules), run)
        return run

    return register


async def refusal(call: Awaitable[object]) -> SynapseError:
    """What ``call`` is refused with; raises ``AssertionError`` where it is not."""
    try:
        answer = await call
    except SynapseError as refused:
        return refused
    raise AssertionError(f"answered: {answer}")
