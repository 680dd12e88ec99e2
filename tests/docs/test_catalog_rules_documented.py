"""The page of catalog rules against the checks and the switches."""

from __future__ import annotations

import re
from pathlib import Path

from synapse_host.errors import STABLE_ERRORS
from synapse_host.testing.catalog_rules.rule_table import CHECKS, SWITCHES
from synapse_host.testing.rule_switches import place_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "catalog-rules.md").read_text("utf-8")
ROWS = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_rule_has_a_row_in_order_and_no_other_has_one() -> None:
    assert [row[0].strip("`") for row in ROWS] == list(SWITCHES)


def test_a_row_names_exactly_the_checks_of_its_rule() -> None:
    named = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[-1])) for row in ROWS}
    shown = {rule: {check.name for check in CHECKS.values() if rule in check.rules} for rule in SWITCHES}
    assert named == shown


def test_the_codes_of_the_page_are_stable() -> None:
    assert {code for row in ROWS for code in re.findall(r"`(\w+)`", row[2])} <= set(STABLE_ERRORS)


def test_every_switch_finds_its_place() -> None:
    for rule, switch in SWITCHES.items():
        owner, name = place_of(switch.target)
        assert hasattr(owner, name), rule
