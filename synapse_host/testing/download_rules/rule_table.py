"""Every download rule by name: how it is switched off, and through ``CHECKS`` what shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from synapse_host.cache.collection_rule import Delete, Keep, Verdict
from synapse_host.cache.metadata import BlobMetadata
from synapse_host.downloads.answer import BeginAnew, Body, Refused
from synapse_host.downloads.job import DownloadState
from synapse_host.downloads.patience import AS_THE_LAST
from synapse_host.testing.download_rules import job_checks, transfer_checks
from synapse_host.testing.download_rules.registered import CHECKS
from synapse_host.testing.rule_switches import Switch, nothing, other_refusal, returning

__all__ = ["CHECKS", "SWITCHES", "job_checks", "transfer_checks"]

_ROOM, _CACHE, _STORE = "synapse_host.downloads.", "synapse_host.cache.", "synapse_host.store.download_store:"


def _whole_whatever_it_holds(original: Any) -> Any:
    async def is_whole(self: Any, wanted: Any) -> bool:
        return True

    return is_whole


def _blank_is_a_key(original: Any) -> Any:
    return lambda given, manifest: original(None, manifest) if given is None else given


def _any_claim(original: Any) -> Any:
    def claim(self: Any, end: DownloadState) -> bool:
        self.claimed = end
        return True

    return claim


def _removing_whoever_pins(original: Any) -> Any:
    def release(layout: Any, digest: str, owner: str, *, remove: bool) -> int:
        if remove:
            layout.blob(digest).unlink(missing_ok=True)
            layout.metadata_file(digest).unlink(missing_ok=True)
        return 0

    return release


def _unmarked_goes(original: Any) -> Any:
    def judge(metadata: BlobMetadata, **facts: Any) -> Verdict:
        verdict: Verdict = original(metadata, **facts)
        return verdict if isinstance(verdict, Keep) else Delete()

    return judge


def _pins_mean_nothing(original: Any) -> Any:
    def judge(metadata: BlobMetadata, **facts: Any) -> Verdict:
        return Delete() if metadata.pins else original(metadata, **facts)

    return judge


def _appended_anyway(original: Any) -> Any:
    def read(status: int, headers: Any, offset: int, *, now: Any) -> Any:
        answer = original(status, headers, offset, now=now)
        return Body(offset, None) if isinstance(answer, BeginAnew) else answer

    return read


def _everything_passes(original: Any) -> Any:
    def read(status: int, headers: Any, offset: int, *, now: Any) -> Any:
        answer = original(status, headers, offset, now=now)
        return Refused(answer.status, True, 0.0) if isinstance(answer, Refused) else answer

    return read


def _token_for_all(original: Any) -> Any:
    def login(address: Any) -> Any:
        async def log_in(request: Any, handler: Any) -> Any:
            request.headers["Authorization"] = f"Bearer {address.token}"
            return await handler(request)

        return (log_in,)

    return login


async def _cancelled_for_show(self: Any, job_id: str) -> dict[str, Any]:
    return {"job_id": job_id, "state": "cancelled"}


async def _nothing_open(self: Any, now_ms: int, error_json: str) -> list[Any]:
    return []


#: Rule -> its switch, in the order of the reference page.
SWITCHES: Mapping[str, Switch] = {
    "key_bound": Switch(_STORE + "_refuse_other_content", nothing),
    "blank_key": Switch(_ROOM + "download_jobs:_key", _blank_is_a_key),
    "one_job": Switch(_STORE + "_open_of", returning(None)),
    "recalled": Switch(_STORE + "_answers", returning(False)),
    "recalled_while_complete": Switch(_ROOM + "download_jobs:DownloadJobs._is_complete", returning(True)),
    "content_reused": Switch(_ROOM + "runner:pin_present", returning(False)),
    "reused_hashed": Switch(_ROOM + "runner:Runner._is_whole", _whole_whatever_it_holds),
    "one_end": Switch(_ROOM + "job:DownloadJob.claim", _any_claim),
    "commit_stays": Switch(_ROOM + "download_jobs:DownloadJobs.cancel", lambda original: _cancelled_for_show),
    "failure_cleans_up": Switch(_ROOM + "runner:Runner._clean_up", nothing),
    "cleaning_spares": Switch(_CACHE + "blob_cache:release", _removing_whoever_pins),
    "unknown_job": Switch(_ROOM + "download_jobs:_unknown", other_refusal),
    "expires": Switch(_STORE + "_forget_expired", nothing),
    "restart_fails_open_jobs": Switch(_STORE + "DownloadStore.fail_open", lambda original: _nothing_open),
    "restart_cleans_up": Switch(_ROOM + "room:repin", nothing),
    "held_stays": Switch(_ROOM + "removal:ModelInUse", lambda original: lambda *args, **kwargs: AssertionError()),
    "removal_frees": Switch(_ROOM + "removal:release_install", returning(0)),
    "damage_set_aside": Switch(_CACHE + "blob_cache:BlobCache._quarantine", nothing),
    "damage_invalidates": Switch(_ROOM + "installs:Installs.invalidate", returning([])),
    "gc_marks_first": Switch(_CACHE + "collection:judge", _unmarked_goes),
    "gc_spares_readers": Switch(
        _CACHE + "collection:exclusive_lease", lambda original: lambda *args: nullcontext(True)
    ),
    "gc_spares_pins": Switch(_CACHE + "collection:judge", _pins_mean_nothing),
    "told_size": Switch(_ROOM + "transfer:Transfer._require_size", nothing),
    "received_size": Switch(_ROOM + "transfer:Transfer._refuse_longer", nothing),
    "digest": Switch(_ROOM + "transfer:Transfer._require_whole", nothing),
    "resumed": Switch(_ROOM + "transfer:Transfer._headers", returning({})),
    "early_end": Switch(_ROOM + "transfer:Transfer._require_uncut", nothing),
    "begun_anew": Switch(_ROOM + "transfer:read_answer", _appended_anyway),
    "silence": Switch(_ROOM + "transfer:Transfer._left_s", returning(math.inf)),
    "retry_after": Switch(_ROOM + "answer:retry_after_s", returning(None)),
    "given_up": Switch(_ROOM + "attempts:Attempts.next_wait_s", returning(0.0)),
    "refusal_final": Switch(_ROOM + "transfer:read_answer", _everything_passes),
    "mirror_first": Switch(
        _ROOM + "sources:Sources.addresses", lambda original: lambda self, source: original(self, source)[-1:]
    ),
    "slow_left": Switch(_ROOM + "fetcher:WITH_ANOTHER", lambda original: AS_THE_LAST),
    "token_at_home": Switch(_ROOM + "transfer:_login", _token_for_all),
    "address_pinned": Switch(_ROOM + "single_files:is_pinned_address", returning(True)),
    "branch_refused": Switch(_ROOM + "single_files:names_branch", returning(False)),
    "room_kept": Switch(_CACHE + "ingest:Ingest.require_room", nothing),
    "copy_is_another": Switch(_CACHE + "host_records:is_same_place", returning(True)),
    "living_kept": Switch(_CACHE + "known_hosts:is_running", returning(False)),
}
