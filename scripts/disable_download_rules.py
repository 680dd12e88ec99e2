"""Switches every download rule off in turn and holds the checks against the table: exactly the rule's own must fail.

    python scripts/disable_download_rules.py [RULE...]      all rules, or those named; exits 1 at a difference

A rule no check misses is not shown by any; a check that fails for another rule shows something it does not say.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import anyio

from synapse_host.testing.catalog_rules.switches import switched_off
from synapse_host.testing.download_rules.rule_table import CHECKS, SWITCHES


async def failing(folder: Path) -> set[str]:
    """The checks that fail now."""
    failed = set()
    for name, check in CHECKS.items():
        try:
            await check.run(folder / name)
        except Exception:
            failed.add(name)
    return failed


async def differences(rules: list[str]) -> int:
    """Try each rule and say what is not as the table has it; how many rules are not."""
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        if unshown := await failing(Path(folder) / "none"):
            sys.stdout.write(f"with every rule on these checks fail: {', '.join(sorted(unshown))}\n")
            return 1
        for rule in rules:
            with switched_off(SWITCHES[rule]):
                failed = await failing(Path(folder) / rule)
            expected = {check.name for check in CHECKS.values() if rule in check.rules}
            differing += failed != expected
            verdict = "as the table says" if failed == expected else "NOT as the table says"
            sys.stdout.write(f"{rule}: {len(failed)} fail, {verdict}\n")
            for name in sorted(failed - expected):
                sys.stdout.write(f"  also fails: {name}\n")
            for name in sorted(expected - failed):
                sys.stdout.write(f"  does not fail: {name}\n")
            sys.stdout.flush()
    return differing


def main() -> int:
    """Run; the exit status says whether every rule is shown by exactly its checks."""
    logging.disable()
    rules = sys.argv[1:] or list(SWITCHES)
    return 1 if anyio.run(differences, rules) else 0


if __name__ == "__main__":
    sys.exit(main())
