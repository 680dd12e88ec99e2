"""Every rule of the catalog, shown on a host with the tiny catalog: codes and whole details objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synapse_host.testing.catalog_rules.rule_table import CHECKS, SWITCHES
from synapse_host.testing.catalog_rules.scene import Stage
from synapse_host.testing.models.tiny_catalog import write_tiny_catalog

pytestmark = pytest.mark.anyio


#: Checks whose outcome the rows of a setting could change: those of ids, refusals and listings.
OF_DECLARED_ROWS = sorted(
    name for name, check in CHECKS.items() if not check.rules & {"no_probe", "self_check", "files_held", "file_here"}
)


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


@pytest.mark.parametrize("name", CHECKS)
async def test_the_rule_holds(name: str, stage: Stage) -> None:
    await CHECKS[name].run(stage)


@pytest.mark.parametrize("name", OF_DECLARED_ROWS)
async def test_the_rule_holds_with_more_backends_switched_on(name: str, stage: Stage) -> None:
    await CHECKS[name].run(replace(stage, switched_on=("cuda", "vulkan")))


def test_every_rule_has_a_switch_and_a_check() -> None:
    shown = {rule for check in CHECKS.values() for rule in check.rules}
    assert shown == set(SWITCHES)
