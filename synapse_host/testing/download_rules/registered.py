"""The checks of download rules by name, and what each of them needs of a stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from synapse_host.errors import SynapseError
from synapse_host.testing.rule_checks import Check, Checks, registered

#: A check is given a folder of its own.
CHECKS: Checks[Path] = {}


def check(*rules: str) -> Callable[[Check[Path]], Check[Path]]:
    """Register a check of ``rules`` under its function's name."""
    return registered(CHECKS, rules)


async def refusal(call: Awaitable[object]) -> SynapseError:
    """What ``call`` is refused with; raises ``AssertionError`` where it is not."""
    try:
        answer = await call
    except SynapseError as refused:
        return refused
    raise AssertionError(f"answered: {answer}")
