"""Every rule of downloading, shown on a room of its own or against a real server: codes and whole details objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.testing.download_rules.rule_table import CHECKS, SWITCHES

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", CHECKS)
async def test_the_download_rule_holds(name: str, tmp_path: Path) -> None:
    await CHECKS[name].run(tmp_path)


def test_every_download_rule_has_a_switch_and_a_check() -> None:
    assert {rule for check in CHECKS.values() for rule in check.rules} == set(SWITCHES)
