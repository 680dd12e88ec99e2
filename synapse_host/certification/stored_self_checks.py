"""Decided checks at load in the store: one row each, and back."""

from __future__ import annotations

import json
from typing import cast

from synapse_host.certification.self_check import SelfCheckKey, SelfCheckRow, State
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.store.tables import SelfCheckTableRow


def row_of(check: SelfCheckRow) -> SelfCheckTableRow:
    """The row that keeps ``check``; raises ``ValueError`` for a pending one, which is not kept."""
    if check.state == "pending" or check.checked_at_ms is None:
        raise ValueError(f"the check of {check.key.catalog_id!r} is {check.state}; only a decided one is kept")
    return SelfCheckTableRow(
        check_id=check.key.check_id,
        catalog_id=check.key.catalog_id,
        backend=check.key.backend,
        state=check.state,
        reason=check.reason,
        key_json=canonical_json(check.key.as_json()).decode(),
        figures_json=json.dumps(dict(check.figures), sort_keys=True),
        checked_at_ms=check.checked_at_ms,
    )


def check_of(row: SelfCheckTableRow) -> SelfCheckRow:
    """The check a row keeps."""
    members = json.loads(row.key_json)
    engine = members.pop("engine_identity")
    key = SelfCheckKey(engine=EngineIdentity(engine["engine"], engine["version"], engine["build_flags"]), **members)
    return SelfCheckRow(key, cast(State, row.state), row.reason, json.loads(row.figures_json), row.checked_at_ms)
