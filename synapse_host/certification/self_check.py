"""The numerical check of a lane when it is loaded: its key, its states, and what a refusal by it says. Pure.

Catalog lanes and profile preloads are checked, nothing else (reading 22). A lane's figures are made once for a key and
kept under it: a change of anything in the key makes the check pending again, a kept failure refuses without running.
How figures are judged is ``self_check_judge``, what they are held against ``self_check_fixtures``, what a run may cost
``self_check_budget``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal

from synapse_host.certification.self_check_judge import Verdict
from synapse_host.errors import EngineCrashed, SelfCheckFailed
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.values import value_object

State = Literal["pending", "passed", "failed"]

#: What the row of a free-form lane says instead of a state.
NOT_APPLICABLE: Mapping[str, Any] = MappingProxyType({"state": "not_applicable"})


@value_object
class SelfCheckKey:
    """What a finding holds for.

    For a preload ``catalog_id`` is its profile and ``subset_seal`` the digest of its fixtures, empty where there are
    none; for a catalog lane it is None.
    """

    catalog_id: str
    manifest_digest: str
    backend: str
    fingerprint: str
    engine: EngineIdentity
    os_build: str
    fixture_revision: int
    subset_seal: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object of the key; the seal is left out where there is none."""
        members = {
            "catalog_id": self.catalog_id,
            "manifest_digest": self.manifest_digest,
            "backend": self.backend,
            "fingerprint": self.fingerprint,
            "engine_identity": self.engine.as_json(),
            "os_build": self.os_build,
            "fixture_revision": self.fixture_revision,
        }
        return members if self.subset_seal is None else {**members, "subset_seal": self.subset_seal}

    @property
    def check_id(self) -> str:
        """SHA-256 of the key's canonical JSON, in hex."""
        return sha256_hex(canonical_json(self.as_json()))


@value_object
class SelfCheckRow:
    """Where the check of one key stands; ``figures`` and ``checked_at_ms`` are those of the run that decided it."""

    key: SelfCheckKey
    state: State = "pending"
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    checked_at_ms: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """The ``self_check`` member of a lane's row in listings."""
        wire: dict[str, Any] = {"state": self.state, "check_id": self.key.check_id}
        if self.checked_at_ms is not None:
            wire |= {"checked_at_ms": self.checked_at_ms, "evidence": dict(self.figures)}
        return wire if self.reason is None else {**wire, "reason": self.reason}


def standing(key: SelfCheckKey, kept: SelfCheckRow | None) -> SelfCheckRow:
    """The row that holds for ``key``: the kept one if it is of this very key, else a pending one."""
    return kept if kept is not None and kept.key.check_id == key.check_id else SelfCheckRow(key)


def concluded(key: SelfCheckKey, verdict: Verdict, now_ms: int) -> SelfCheckRow:
    """The row to keep after a run that was judged."""
    state: State = "passed" if verdict.passed else "failed"
    return SelfCheckRow(key, state, verdict.reason, verdict.figures, now_ms)


def failure(row: SelfCheckRow, model_id: str) -> SelfCheckFailed:
    """The refusal of requests to ``model_id`` while ``row`` is failed (wire contract section 2)."""
    reason = row.reason or "unknown"
    details = {"model_id": model_id, "backend": row.key.backend, "check_id": row.key.check_id, "reason": reason}
    if row.key.subset_seal is not None:
        profile = row.key.catalog_id
        return SelfCheckFailed(
            f"model {model_id!r} failed the self-check of profile {profile!r} on backend {row.key.backend!r}: "
            f"{reason}; it is checked again when engine, system, files or the profile change",
            details={**details, "profile": profile},
        )
    return SelfCheckFailed(
        f"model {model_id!r} failed its numeric self-check on backend {row.key.backend!r}: {reason}; "
        "it is checked again after it was removed and downloaded, or when engine, system or files change",
        details=details,
    )


def overtime(model_id: str, spent_ms: float, ceiling_ms: float) -> EngineCrashed:
    """The transient answer where a run passed its ceiling: nothing is kept, no strike is counted (reading 22)."""
    return EngineCrashed(
        f"the numeric self-check of model {model_id!r} computed for {spent_ms:.0f} ms, past its ceiling of "
        f"{ceiling_ms:.0f} ms; the next request checks again",
        details={"model_id": model_id, "reason": "self_check_ceiling", "ceiling_ms": round(ceiling_ms)},
    )
