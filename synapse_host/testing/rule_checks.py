"""Rules by name, the checks that show them, and the trial that switches each rule off in turn.

A rule that no check misses is shown by none; a check that fails for another rule shows something it does not say.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from synapse_host.testing.rule_switches import Switch, switched_off

Stage = TypeVar("Stage")
#: A check is given a stage and raises where what it shows does not hold.
Check: TypeAlias = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RuleCheck(Generic[Stage]):
    """One check and the rules it shows: each of them switched off makes it fail, and no other does."""

    name: str
    rules: frozenset[str]
    run: Check[Stage]


Checks: TypeAlias = dict[str, RuleCheck[Stage]]


def registered(checks: Checks[Stage], rules: Sequence[str]) -> Callable[[Check[Stage]], Check[Stage]]:
    """A decorator that puts a check of ``rules`` among ``checks``, under its function's name."""

    def register(run: Check[Stage]) -> Check[Stage]:
        name = getattr(run, "__name__", "")
        assert name not in checks, name
        checks[name] = RuleCheck(name, frozenset(rules), run)
        return run

    return register


async def differences(
    checks: Checks[Stage],
    switches: Mapping[str, Switch],
    rules: Sequence[str],
    stage_of: Callable[[str, str], Stage],
) -> int:
    """Switch each of ``rules`` off and say which checks fail that should not, or do not; how many rules differ.

    ``stage_of`` (rule, check) is what a check is given; the rule is empty while every rule holds.
    """
    if unshown := await _failing(checks, "", stage_of):
        sys.stdout.write(f"with every rule on these checks fail: {', '.join(sorted(unshown))}\n")
        return 1
    differing = 0
    for rule in rules:
        began = time.monotonic()
        with switched_off(switches[rule]):
            failed = await _failing(checks, rule, stage_of)
        expected = {check.name for check in checks.values() if rule in check.rules}
        differing += failed != expected
        verdict = "as the table says" if failed == expected else "NOT as the table says"
        sys.stdout.write(f"{rule}: {len(failed)} fail, {verdict} ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.writelines(f"  also fails: {name}\n" for name in sorted(failed - expected))
        sys.stdout.writelines(f"  does not fail: {name}\n" for name in sorted(expected - failed))
        sys.stdout.flush()
    return differing


async def _failing(checks: Checks[Stage], rule: str, stage_of: Callable[[str, str], Stage]) -> set[str]:
    """The checks that fail now."""
    failed = set()
    for name, check in checks.items():
        try:
            await check.run(stage_of(rule, name))
        except Exception:
            failed.add(name)
    return failed
