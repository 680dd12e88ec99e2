"""aliases.check_index, alias.declare and alias.retract: which numeric identities count as one vector space."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synapse_host.certification.alias_table import Alias, AliasTable, Pair, pair_of
from synapse_host.errors import InvalidRequest, SubstitutionRejected
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.constraints import Name, Params
from synapse_host.operations.quoting import quoted
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.store.alias_store import AliasRow, AliasRows, AliasStore
from synapse_host.values import value_object

_log = logging.getLogger(__name__)
#: Bytes of JSON an alias's evidence may take: it is sent with every models.list.
MOST_EVIDENCE_BYTES = 64 * 1024
#: Identities one index may name.
MOST_PROVENANCE = 4096
#: What every identity looks like, whoever computed it: a SHA-256 (wire contract section 1).
_FINGERPRINT = re.compile("[0-9a-f]{64}")


class CheckIndexParams(Params):
    """The identity an index is kept under, and those of the vectors in it."""

    index_fingerprint: Name
    provenance_set: Annotated[list[Name], Field(max_length=MOST_PROVENANCE, fail_fast=True)]


class AliasParams(BaseModel):
    """A pair of identities, under either spelling; unknown fields are tolerated (wire contract section 5)."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    left: Name | None = None
    right: Name | None = None
    fingerprint_a: Name | None = None
    fingerprint_b: Name | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_pair(self) -> AliasParams:
        for spellings in (("left", "fingerprint_a"), ("right", "fingerprint_b")):
            given = {getattr(self, name) for name in spellings} - {None}
            if not given:
                raise ValueError(f"{spellings[0]} (or {spellings[1]}) is missing: add it")
            if len(given) > 1:
                raise ValueError(f"{spellings[0]} and {spellings[1]} are one field and differ: give one of them")
        return self

    @property
    def pair(self) -> Pair:
        """The two identities in the order they are kept in."""
        return pair_of(self.left or self.fingerprint_a or "", self.right or self.fingerprint_b or "")


_Change = Callable[[Pair, str, int], Awaitable[tuple[bool, AliasRows]]]


@value_object
class AliasService:
    """Reads and changes the alias table."""

    table: AliasTable
    store: AliasStore
    lanes: LaneTable
    admin_enabled: bool
    now_ms: Callable[[], int]
    module_generation: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("aliases.check_index", "query", CheckIndexParams, self.check_index),
            Method("alias.declare", "mutate", AliasParams, self.declare),
            Method("alias.retract", "mutate", AliasParams, self.retract),
        ]

    async def check_index(self, params: CheckIndexParams, context: RequestContext) -> Reply:
        """Whether an index holds one vector space."""
        served = [lane.model.fingerprint for lane in self.lanes]
        mixed = self.table.check_index(params.index_fingerprint, params.provenance_set, served)
        verdict: dict[str, Any] = {"status": "valid"}
        if mixed is not None:
            verdict = {
                "status": "migration_required",
                "retracted_pair": {"fingerprint_a": mixed.pair[0], "fingerprint_b": mixed.pair[1]},
                "rebuild_target": mixed.rebuild_target,
            }
        return self._answer({"table_epoch": self.table.epoch, "verdict": verdict})

    async def declare(self, params: AliasParams, context: RequestContext) -> Reply:
        """Declare two identities equivalent from now on."""
        self._refuse_switched_off()
        _refuse_shapeless(params.pair)
        return await self._change("declared", self.store.declare, params)

    async def retract(self, params: AliasParams, context: RequestContext) -> Reply:
        """Declare them equivalent no more."""
        self._refuse_switched_off()
        return await self._change("retracted", self.store.retract, params)

    def _refuse_switched_off(self) -> None:
        if not self.admin_enabled:
            raise SubstitutionRejected(
                "alias administration is switched off on this host (setting aliases.admin_enabled); switch it on first"
            )

    async def _change(self, what: str, change: _Change, params: AliasParams) -> Reply:
        pair, evidence = params.pair, json.dumps(params.evidence, separators=(",", ":"))
        _refuse_unfit(pair, evidence)
        changed, rows = await change(pair, evidence, self.now_ms())
        take_rows(self.table, rows)
        if changed:
            _log.info("alias %s: %s and %s, table epoch %d", what, *pair, self.table.epoch)
        return self._answer({"changed": changed, "table_epoch": self.table.epoch})

    def _answer(self, payload: dict[str, Any]) -> Reply:
        return Reply({"module_generation": self.module_generation, **payload})


def take_rows(table: AliasTable, rows: AliasRows) -> None:
    """Let ``table`` be what the store holds, unless it holds something newer already."""
    epoch, found = rows
    if epoch >= table.epoch:
        table.replace(epoch, map(_alias, found))


def _alias(row: AliasRow) -> Alias:
    evidence, retraction = (_object(text) for text in (row.evidence_json, row.retraction_json))
    return Alias((row.fingerprint_a, row.fingerprint_b), row.valid_from_ms, row.valid_to_ms, evidence, retraction)


def _object(text: str) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def _refuse_shapeless(pair: Pair) -> None:
    """Only what is declared: a pair that an older host took can still be retracted."""
    for name in pair:
        if _FINGERPRINT.fullmatch(name) is None:
            raise InvalidRequest(
                f"{quoted(name)} is no fingerprint, which is 64 lowercase hex digits; copy one from an answer or "
                "from models.list",
                details={"fingerprint": name},
            )


def _refuse_unfit(pair: Pair, evidence: str) -> None:
    if pair[0] == pair[1]:
        raise InvalidRequest(
            f"both identities are {pair[0]!r}; an identity is equivalent to itself, so name two",
            details={"left": pair[0], "right": pair[1]},
        )
    if len(evidence) > MOST_EVIDENCE_BYTES:
        raise InvalidRequest(
            f"the evidence takes {len(evidence)} bytes and may take {MOST_EVIDENCE_BYTES}; refer to it by a digest",
            details={"bytes": len(evidence), "max_bytes": MOST_EVIDENCE_BYTES},
        )
