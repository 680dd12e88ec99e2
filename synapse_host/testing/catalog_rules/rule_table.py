"""Every catalog rule by name: how it is switched off, and through ``CHECKS`` what shows it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from synapse_host.backends.backend_row import BackendRow
from synapse_host.catalog.entries import CatalogEntry
from synapse_host.catalog.standing import CatalogStanding
from synapse_host.downloads.installs import Install, InstallMember
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.worker_errors import load_error
from synapse_host.testing.catalog_rules import file_checks, method_checks, profile_checks, serving_checks
from synapse_host.testing.catalog_rules.scene import CHECKS
from synapse_host.testing.rule_switches import Switch, nothing, nothing_async, other_refusal, returning

__all__ = ["CHECKS", "SWITCHES", "file_checks", "method_checks", "profile_checks", "serving_checks"]

_HOST = "synapse_host."


def _raising(original: Any) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InvalidRequest("the rule is switched off")

    return refuse


def _always_installed(original: Any) -> Any:
    def install(self: CatalogStanding, entry: CatalogEntry, backend: str) -> Install:
        files: dict[str, InstallMember] = {
            file.role: InstallMember(file.role, file.path, file.sha256, file.size_bytes) for file in entry.files
        }
        return Install(entry.id, entry.manifest_digest, files)

    return install


def _valid_or_not(original: Any) -> Any:
    def install(self: CatalogStanding, entry: CatalogEntry, backend: str) -> Install | None:
        return self.installs.current(entry.id, entry.manifest_digest)

    return install


def _nothing_switched_on(original: Any) -> Any:
    return lambda self, switched_on: original(self, ())


def _entry_or_any_refusal(original: Any) -> Any:
    def entry_of(self: CatalogStanding, catalog_id: str) -> CatalogEntry:
        entry = self.catalog.entry(catalog_id)
        if entry is None:
            raise InvalidRequest("the rule is switched off")
        return entry

    return entry_of


def _reasons_without_platforms(original: Any) -> Any:
    # Where its plugin is installed, its own probe says the same as the host: both have to be silenced.
    async def look(*args: Any, **kwargs: Any) -> dict[str, BackendRow]:
        rows: dict[str, BackendRow] = await original(*args, **kwargs)
        return {
            name: replace(row, reason="worker_missing") if row.reason == "not_supported_on_platform" else row
            for name, row in rows.items()
        }

    return look


def _unverified(original: Any) -> Any:
    return lambda path, *args, **kwargs: (path.read_bytes(), None)


def _held_by_nobody(original: Any) -> Any:
    return lambda self: ExitStack()


def _released_at_once(original: Any) -> Any:
    async def release(worker: Any, held: ExitStack) -> None:
        held.close()

    return release


def _plain_load_error(original: Any) -> Any:
    return lambda self, refusal, model: load_error(refusal, model)


#: Rule -> its switch, in the order of the reference page.
SWITCHES: Mapping[str, Switch] = {
    "task": Switch(_HOST + "lanes.resolution:_refuse_other_task", nothing),
    "unknown_id": Switch(_HOST + "lanes.resolution:unknown_model", other_refusal),
    "unknown_fingerprint": Switch(_HOST + "lanes.lane_table:LaneTable.of_fingerprint", _raising),
    "lane_fingerprint": Switch(_HOST + "lanes.resolution:_agreeing", lambda original: lambda target, *args: target),
    "no_substitute": Switch(
        _HOST + "lanes.resolution:_substitutes", lambda original: lambda catalog, fingerprint, equivalents: equivalents
    ),
    "default_for_task": Switch(_HOST + "catalog.entries:Catalog.default", returning(None)),
    "first_runnable": Switch(
        _HOST + "lanes.catalog_shelf:first_runnable", lambda original: lambda backends: next(iter(backends), None)
    ),
    "pinned_backend": Switch(
        _HOST + "lanes.catalog_shelf:_pinned",
        lambda original: lambda backends, row: next((one for one in backends if one.runnable), None),
    ),
    "backend_runnable": Switch(_HOST + "lanes.catalog_shelf:unavailable", other_refusal),
    "platform_reason": Switch(_HOST + "host_catalog:look_at_machine", _reasons_without_platforms),
    "installed": Switch(_HOST + "catalog.standing:CatalogStanding.install", _always_installed),
    "install_whole": Switch(_HOST + "catalog.standing:CatalogStanding.install", _valid_or_not),
    "download_named": Switch(_HOST + "downloads.download_jobs:DownloadJobs.open_job", returning(None)),
    "quarantine": Switch(_HOST + "lanes.lane:Lane.refuse_quarantined", nothing),
    "failed_check": Switch(_HOST + "certification.self_checks:SelfChecks.refuse_failed", nothing),
    "no_probe": Switch(
        _HOST + "models.registered_model:RegisteredModel.certifiable",
        lambda original: property(lambda model: True),
    ),
    "length": Switch(
        _HOST + "operations.lane_door:LaneDoor.refuse_too_long", lambda original: staticmethod(nothing(original))
    ),
    "switched_on": Switch(_HOST + "catalog.entries:Catalog.with_backends", _nothing_switched_on),
    "pin": Switch(_HOST + "models.catalog_package:CatalogPackage._require_pin", nothing),
    "unpinned_flags": Switch(
        _HOST + "models.catalog_package:_engine_of",
        lambda original: lambda described, unpinned: original(described, ()),
    ),
    "file_here": Switch(_HOST + "models.catalog_package:CatalogPackage._held", _held_by_nobody),
    "file_digest": Switch(_HOST + "models.catalog_package:read_verified", _unverified),
    "load_explained": Switch(_HOST + "models.catalog_package:CatalogPackage.load_error", _plain_load_error),
    "damage_reported": Switch(_HOST + "models.catalog_package:CatalogPackage._report", nothing_async),
    "files_held": Switch(_HOST + "models.catalog_package:release_after", _released_at_once),
    "self_check": Switch(_HOST + "certification.self_checks:SelfChecks.require_passed", nothing_async),
    "self_check_kept": Switch(_HOST + "host:Host._save_check", nothing_async),
    "self_check_waited_for": Switch(_HOST + "operations.lane_door:still_checking", other_refusal),
    "self_check_ceiling": Switch(_HOST + "certification.self_checks:overtime", other_refusal),
    "profile_checked": Switch(_HOST + "operations.preloading:Preloads._check", nothing_async),
    "profile_of_engine": Switch(_HOST + "models.model_preparation:refuse_other_engine", nothing),
    "unload_by_lane": Switch(_HOST + "operations.loading:LoadingService._refuse_entry", nothing),
    "unload_held": Switch(_HOST + "lanes.lane_holders:Holders.refuse", nothing),
    "remove_held": Switch(_HOST + "lanes.catalog_shelf:CatalogShelf.holders", returning(())),
    "remove_held_by_job": Switch(_HOST + "operations.job_holders:JobHolders.holders", returning(())),
    "removal_forgets": Switch(_HOST + "certification.self_checks:SelfChecks.forget", nothing),
    "reserved_for_download": Switch(_HOST + "catalog.standing:CatalogStanding.entry_of", _entry_or_any_refusal),
    "download_runnable": Switch(_HOST + "catalog.standing:unavailable", other_refusal),
    "reserved_for_load": Switch(_HOST + "operations.loading:refuse_reserved", nothing),
    "reserved_for_probe": Switch(_HOST + "operations.probing:refuse_reserved", nothing),
    "catalog_filters": Switch(_HOST + "operations.cataloguing:CataloguingService._passes", returning(True)),
    "catalog_bytes": Switch(_HOST + "operations.cataloguing:download_bytes", returning(1)),
    "install_state": Switch(_HOST + "catalog.standing:CatalogStanding.state", returning("not_installed")),
    "list_installed": Switch(_HOST + "lanes.catalog_shelf:CatalogShelf.fill", nothing_async),
    "list_admission": Switch(_HOST + "operations.listing:ListingService._of_catalog", returning({})),
    "report_lanes": Switch(_HOST + "operations.probing:ProbingService._of_catalog", returning({})),
}
