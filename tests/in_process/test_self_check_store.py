"""Decided checks are kept under their key, come back whole, and go with the model they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.certification import self_check
from synapse_host.certification.self_check import SelfCheckKey, SelfCheckRow
from synapse_host.certification.self_check_judge import Verdict
from synapse_host.certification.stored_self_checks import check_of, row_of
from synapse_host.errors import StoreFailure
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.store.database import Store
from synapse_host.store.self_check_store import SelfCheckStore

pytestmark = pytest.mark.anyio

KEY = SelfCheckKey("gte", "a" * 64, "metal", "b" * 64, EngineIdentity("owned-metal", "1", {"x": "y"}), "24A1", 1)
PASSED = self_check.concluded(KEY, Verdict(True, None, {"min_cosine": 0.9999999}), 5)
FAILED = self_check.concluded(
    replace(KEY, os_build="24A2", subset_seal="c" * 64), Verdict(False, "case a: cosine 0.5, below 0.999", {}), 6
)


async def test_findings_survive_a_restart_whole(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "synapse.db")
    for check in (PASSED, FAILED):
        await SelfCheckStore(store).save(row_of(check))
    store.close()

    store = Store.open(tmp_path / "synapse.db")
    kept = SelfCheckStore(store)
    rows = [await kept.get(check.key.check_id) for check in (PASSED, FAILED)]
    missing = await kept.get("0" * 64)
    ordered = [row.check_id for row in await kept.all()]
    store.close()
    assert [check_of(row) for row in rows if row is not None] == [PASSED, FAILED]
    assert missing is None
    assert ordered == [PASSED.key.check_id, FAILED.key.check_id]


async def test_a_removed_model_takes_its_findings_along(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "synapse.db")
    kept = SelfCheckStore(store)
    other = replace(PASSED, key=replace(KEY, catalog_id="qwen"))
    for check in (PASSED, FAILED, other):
        await kept.save(row_of(check))
    assert await kept.forget("gte") == 2
    assert [row.catalog_id for row in await kept.all()] == ["qwen"]
    assert await kept.forget("gte") == 0
    store.close()


async def test_a_newer_finding_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "synapse.db")
    kept = SelfCheckStore(store)
    await kept.save(row_of(PASSED))
    await kept.save(row_of(replace(PASSED, checked_at_ms=99)))
    assert [row.checked_at_ms for row in await kept.all()] == [99]
    store.close()


async def test_a_pending_check_is_not_kept_and_a_failure_needs_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pending"):
        row_of(SelfCheckRow(KEY))
    store = Store.open(tmp_path / "synapse.db")
    broken = row_of(FAILED)
    broken.reason = None
    with pytest.raises(StoreFailure):
        await SelfCheckStore(store).save(broken)
    store.close()
