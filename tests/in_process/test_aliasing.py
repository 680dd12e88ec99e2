"""aliases.check_index, alias.declare and alias.retract over a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import FlowScopeRefused, InvalidRequest, SubstitutionRejected, SynapseError
from synapse_host.identity.digests import sha256_hex
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.aliasing import MOST_EVIDENCE_BYTES, AliasService, take_rows
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.store.alias_store import AliasStore
from synapse_host.store.database import Store
from synapse_host.store.module_store import ModuleStore

pytestmark = pytest.mark.anyio
#: Fingerprints in the order of their text.
A, B, C, X, Y = (letter * 64 for letter in "abcef")


@dataclass
class Served:
    """The three methods, and what is behind them."""

    registry: Registry
    table: AliasTable
    store: Store

    async def call(self, method: str, flow: str | None = None, /, **params: Any) -> dict[str, Any]:
        return (await self.registry.dispatch(method, params, RequestContext(0.0, flow_id=flow))).payload

    async def refused(self, method: str, **params: Any) -> SynapseError:
        with pytest.raises(SynapseError) as refusal:
            await self.call(method, **params)
        return refusal.value


@asynccontextmanager
async def served(path: Path, *, admin: bool = True) -> AsyncIterator[Served]:
    store = Store.open(path / "store.sqlite3")
    table, aliases = AliasTable(), AliasStore(store)
    take_rows(table, await aliases.all())
    ticks = iter(range(1000, 9999))
    service = AliasService(table, aliases, LaneTable(), admin, lambda: next(ticks), 7)
    try:
        yield Served(Registry(service.methods()), table, store)
    finally:
        store.close()


async def test_declaring_and_retracting_move_the_epoch_and_doing_it_twice_does_not(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        steps = [
            ("alias.declare", True, 1),
            ("alias.declare", False, 1),
            ("alias.retract", True, 2),
            ("alias.retract", False, 2),
            ("alias.declare", True, 3),
        ]
        for method, changed, epoch in steps:
            assert await it.call(method, left=B, right=A) == {
                "module_generation": 7,
                "changed": changed,
                "table_epoch": epoch,
            }
        assert it.table.equivalents(A) == (B,)


async def test_both_spellings_and_both_orders_are_one_pair_and_unknown_fields_are_tolerated(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert (await it.call("alias.declare", fingerprint_a=X, fingerprint_b=Y, note="later"))["changed"]
        assert not (await it.call("alias.declare", left=Y, fingerprint_b=X, evidence={"a": 1}))["changed"]
        assert (await it.call("alias.retract", left=X, right=Y, wherefore=[1]))["changed"]


async def test_evidence_is_kept_and_is_an_empty_object_when_left_out(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.call("alias.declare", left=A, right=B)
        await it.call("alias.declare", left=A, right=C, evidence={"cosine": 0.9999})
        await it.call("alias.retract", left=A, right=C, evidence={"why": "driver"})
        assert [(row.evidence, row.retraction) for row in it.table.rows] == [
            ({}, {}),
            ({"cosine": 0.9999}, {"why": "driver"}),
        ]


async def test_the_table_and_its_epoch_survive_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as before:
        await before.call("alias.declare", left=A, right=B, evidence={"k": [1]})
        await before.call("alias.declare", left=A, right=C)
        await before.call("alias.retract", left=A, right=C)
    async with served(tmp_path) as after:
        assert after.table.epoch == await ModuleStore(after.store).table_epoch() == 3
        assert after.table.rows == before.table.rows
        assert after.table.equivalents(A) == (B,)


async def test_with_administration_off_nothing_changes(tmp_path: Path) -> None:
    async with served(tmp_path, admin=False) as it:
        for method in ("alias.declare", "alias.retract"):
            refusal = await it.refused(method, left=A, right=B)
            assert isinstance(refusal, SubstitutionRejected)
            assert not refusal.channel
            assert "aliases.admin_enabled" in refusal.message
        assert it.table.rows == ()


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"left": A}, "right (or fingerprint_b) is missing"),
        ({"right": A}, "left (or fingerprint_a) is missing"),
        ({"left": "", "right": B}, "params.left"),
        ({"left": A, "fingerprint_a": C, "right": B}, "are one field and differ"),
        ({"left": A, "right": B, "evidence": "x"}, "params.evidence"),
        ({"left": 7, "right": B}, "params.left"),
    ],
)
async def test_malformed_pairs_are_refused_on_the_channel(tmp_path: Path, params: dict[str, Any], said: str) -> None:
    async with served(tmp_path) as it:
        refusal = await it.refused("alias.declare", **params)
        assert isinstance(refusal, InvalidRequest)
        assert refusal.channel
        assert said in refusal.message


async def test_a_pair_of_one_identity_and_evidence_without_bound_are_refused_with_details(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        same = await it.refused("alias.declare", left=A, right=A)
        large = await it.refused("alias.declare", left=A, right=B, evidence={"x": "y" * MOST_EVIDENCE_BYTES})
        for refusal in (same, large):
            assert isinstance(refusal, InvalidRequest)
            assert not refusal.channel
            assert refusal.details


@pytest.mark.parametrize("nonsense", ["nonsense", "a" * 63, "a" * 65, "A" * 64, "g" * 64, f" {'a' * 63}", "٣" * 64])
async def test_only_what_has_the_form_of_a_fingerprint_is_declared(tmp_path: Path, nonsense: str) -> None:
    async with served(tmp_path) as it:
        for pair in ({"left": nonsense, "right": A}, {"fingerprint_a": A, "fingerprint_b": nonsense}):
            refusal = await it.refused("alias.declare", **pair)
            assert isinstance(refusal, InvalidRequest)
            assert not refusal.channel
            assert refusal.details == {"fingerprint": nonsense}
            assert "64 lowercase hex digits" in refusal.message
        # What an older host took can be taken back.
        assert not (await it.call("alias.retract", left=nonsense, right=A))["changed"]
        assert it.table.rows == ()


async def test_an_index_is_checked_against_the_pairs_that_hold(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.call("alias.declare", left=A, right=B)
        checked = {"index_fingerprint": B, "provenance_set": [A, B]}
        assert (await it.call("aliases.check_index", **checked)) == {
            "module_generation": 7,
            "table_epoch": 1,
            "verdict": {"status": "valid"},
        }
        await it.call("alias.retract", left=A, right=B)
        assert (await it.call("aliases.check_index", **checked)) == {
            "module_generation": 7,
            "table_epoch": 2,
            "verdict": {
                "status": "migration_required",
                "retracted_pair": {"fingerprint_a": A, "fingerprint_b": B},
                "rebuild_target": B,
            },
        }
        assert (await it.refused("aliases.check_index", **checked, more=1)).channel


async def test_a_flow_may_check_and_not_change(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.call("aliases.check_index", "flow-1", index_fingerprint=A, provenance_set=[])
        for method in ("alias.declare", "alias.retract"):
            with pytest.raises(FlowScopeRefused):
                await it.call(method, "flow-1", left=A, right=B)


async def test_many_at_once_are_counted_one_by_one(tmp_path: Path) -> None:
    async with served(tmp_path) as it, anyio.create_task_group() as callers:
        for number in range(20):
            callers.start_soon(lambda n=number: it.call("alias.declare", left=A, right=sha256_hex(bytes([n % 10]))))
    assert it.table.epoch == 10
    assert len(it.table.equivalents(A)) == 10
