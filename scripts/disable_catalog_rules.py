"""Switches every catalog rule off in turn and holds the checks against the table: exactly the rule's own must fail.

python scripts/disable_catalog_rules.py [RULE...]      all rules, or those named; exits 1 at a difference
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import anyio

from synapse_host.testing.catalog_rules.rule_table import CHECKS, SWITCHES
from synapse_host.testing.catalog_rules.scene import Stage
from synapse_host.testing.models.tiny_catalog import write_tiny_catalog
from synapse_host.testing.rule_checks import differences


async def try_rules(rules: list[str]) -> int:
    """Try each rule; how many are not as the table has it."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(write_tiny_catalog(Path(folder) / "tiny"))
        return await differences(CHECKS, SWITCHES, rules, lambda rule, check: stage)


def main() -> int:
    """Run; the exit status says whether every rule is shown by exactly its checks."""
    logging.disable()
    rules = sys.argv[1:] or list(SWITCHES)
    return 1 if anyio.run(try_rules, rules) else 0


if __name__ == "__main__":
    sys.exit(main())
