"""Every rule of the catalog, shown on a host with the tiny catalog: codes and whole details objects."""

from __future__ import annotations

import pytest

from synapse_host.testing.catalog_rules.rule_table import CHECKS, SWITCHES
from synapse_host.testing.catalog_rules.scene import Stage
from synapse_host.testing.tiny_catalog import write_tiny_catalog

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


@pytest.mark.parametrize("name", CHECKS)
async def test_the_rule_holds(name: str, stage: Stage) -> None:
    await CHECKS[name].run(stage)


def test_every_rule_has_a_switch_and_a_check() -> None:
    shown = {rule for check in CHECKS.values() for rule in check.rules}
    assert shown == set(SWITCHES)
