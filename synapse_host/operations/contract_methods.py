"""The methods of the wire contract and their kinds (contract section 5, original facts 2.1).

A flow-scoped route may call queries only. A method may stand here before the host serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

MethodKind = Literal["query", "mutate"]

_QUERIES = (
    "embed.query",
    "embed.batch",
    "embed.result",
    "rerank.score",
    "microllm.oneshot",
    "owned_decode.session_status",
    "model.status",
    "models.list",
    "models.catalog",
    "probe.status",
    "probe.report",
    "aliases.check_index",
    "admission.status",
    "certify.observations",
    "lanes.status",
)
_MUTATIONS = (
    "job.resume",
    "owned_decode.admit_session",
    "owned_decode.decode",
    "owned_decode.snapshot",
    "owned_decode.continue",
    "owned_decode.abort",
    "owned_decode.close",
    "owned_decode.disable",
    "owned_decode.revoke",
    "model.load",
    "model.unload",
    "models.download",
    "models.download.cancel",
    "models.remove",
    "probe.start",
    "alias.retract",
    "alias.declare",
    "cache.pin",
    "cache.gc",
    "approvals.migrate_owned_decode",
    "approvals.enable",
    "approvals.disable",
    "approvals.emergency_rollback",
    "lanes.pause",
    "lanes.resume",
)

#: method -> kind.
CONTRACT_METHODS: Mapping[str, MethodKind] = {
    **dict.fromkeys(_QUERIES, "query"),
    **dict.fromkeys(_MUTATIONS, "mutate"),
}
#: The same for methods of ours beside the contract's (docs/explanation/deliberate-deviations.md).
ADDED_METHODS: Mapping[str, MethodKind] = {"job.cancel": "mutate"}
