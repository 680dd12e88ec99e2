"""The methods of downloading, removing and the cache by the registry: shapes, order of checks, details."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.downloads.manifest import Manifest
from synapse_host.errors import (
    ArtifactInvalid,
    BackendUnavailable,
    IdempotencyConflict,
    InvalidRequest,
    ModelInUse,
    QueueFull,
    StoreFailure,
    SynapseError,
    UnknownModel,
)
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.caching import CachingService
from synapse_host.operations.downloading import DownloadingService
from synapse_host.operations.loading import LoadingService
from synapse_host.operations.management_jobs import ManagementJobs
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.testing.download_room import RunningRoom, manifest_of, running_room

pytestmark = pytest.mark.anyio

MODEL = b"weights" * 1000
MANIFEST = manifest_of({"model": MODEL})
SHA = MANIFEST.files[0].sha256
HIDDEN: Any = None


class Catalog:
    """``tiny`` runs here, ``far`` on no backend, ``tiny-metal`` is a lane."""

    manifest = MANIFEST

    async def wanted(self, catalog_id: str) -> Manifest:
        self.require_entry(catalog_id)
        if catalog_id == "far":
            raise BackendUnavailable("no backend", details={"catalog_id": "far", "lane_id": None, "backends": []})
        return self.manifest

    def require_entry(self, catalog_id: str) -> None:
        if catalog_id == "tiny-metal":
            raise InvalidRequest("a lane", details={"model_id": "tiny-metal", "catalog_id": "tiny"})
        if catalog_id not in ("tiny", "far"):
            raise UnknownModel("no such model", details={"model_id": catalog_id})


class Served:
    """The methods on a running room."""

    def __init__(self, running: RunningRoom) -> None:
        self.running = running
        self.catalog = Catalog()
        room = running.room
        loads = ManagementJobs("model-load", module_generation=1, tasks=HIDDEN)
        services = (
            DownloadingService(self.catalog, room, room.removal([]), lambda catalog_id: None),
            CachingService(room, lambda: running.clock_ms[0], 1),
            LoadingService(LaneTable(), HIDDEN, HIDDEN, loads, room.jobs, HIDDEN, 1),
        )
        self._registry = Registry(method for service in services for method in service.methods())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return (await self._registry.dispatch(method, params, RequestContext(0.0))).payload

    async def refusal(self, kind: type[SynapseError], method: str, **params: Any) -> Mapping[str, Any]:
        with pytest.raises(kind) as refused:
            await self.call(method, **params)
        assert not refused.value.channel
        assert refused.value.details is not None
        return refused.value.details


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[Served]:
    async with running_room(home, [MODEL]) as running:
        yield Served(running)


@pytest.mark.parametrize("method", ["models.download", "models.remove"])
async def test_the_id_is_checked_in_order(tmp_path: Path, method: str) -> None:
    async with served(tmp_path) as host:
        refused = await host.refusal(InvalidRequest, method, catalog_id="tiny-metal")
        assert refused == {"model_id": "tiny-metal", "catalog_id": "tiny"}
        assert await host.refusal(UnknownModel, method, catalog_id="nope") == {"model_id": "nope"}


async def test_an_entry_without_a_backend_here_is_refused_before_its_key_is_looked_at(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        details = await host.refusal(BackendUnavailable, "models.download", catalog_id="far", request_key="k")
        assert details["lane_id"] is None
        assert await host.call("models.remove", catalog_id="far") == {
            "catalog_id": "far",
            "removed_manifests": [],
            "freed_bytes": 0,
        }


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("models.download", {}),
        ("models.download", {"catalog_id": "tiny", "extra": 1}),
        ("models.download", {"catalog_id": "tiny", "request_key": 7}),
        ("models.download.cancel", {}),
        ("models.remove", {"catalog_id": "tiny", "force": True}),
        ("cache.pin", {}),
        ("cache.pin", {"digest": SHA, "source_url": "/x"}),
        ("cache.pin", {"digest": "sha256:xyz"}),
        ("cache.pin", {"digest": SHA.upper()}),
        ("cache.gc", {"grace_ms": -1}),
        ("cache.gc", {"older_than": 1}),
    ],
)
async def test_malformed_parameters_are_refused_on_the_channel(
    tmp_path: Path, method: str, params: dict[str, Any]
) -> None:
    async with served(tmp_path) as host:
        with pytest.raises(InvalidRequest) as refused:
            await host.call(method, **params)
        assert refused.value.channel
        assert refused.value.details is None


@pytest.mark.parametrize(
    ("parameter", "params"),
    [
        ("source_url", {"source_url": "/a\0b"}),
        ("source_url", {"source_url": "file:///a%00b"}),
        ("source_url", {"source_url": "https://host/a\0b", "expected_digest": SHA}),
        ("tokenizer_path", {"source_url": "/a", "tokenizer_path": "/t\0"}),
    ],
)
async def test_a_path_with_a_nul_is_refused_by_the_name_of_its_parameter(
    tmp_path: Path, parameter: str, params: dict[str, Any]
) -> None:
    async with served(tmp_path) as host:
        with pytest.raises(InvalidRequest, match=f"{parameter} .*NUL") as refused:
            await host.call("cache.pin", **params)
        assert set(refused.value.details or {}) == {parameter}


@pytest.mark.parametrize(
    "address",
    [
        *("http://[", "http://[::1", "http://:99999/", "http://a:b/", "http://127.0.0.1:-1/", "http://a..b/x"),
        *(f"http://{'a' * 64}.example/x", "http://", "http:///x", "http://\t127.0.0.1/", "http://h/a\r\nX: y"),
    ],
)
async def test_an_address_of_no_server_is_refused_by_the_name_of_its_parameter(tmp_path: Path, address: str) -> None:
    async with served(tmp_path) as host:
        with pytest.raises(InvalidRequest, match=r"source_url .*; correct it") as refused:
            await host.call("cache.pin", source_url=address, expected_digest=SHA)
        assert set(refused.value.details or {}) == {"source_url"}


async def test_a_download_is_polled_by_model_status_and_removed(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        host.running.source.hold = anyio.Event()
        first = await host.call("models.download", catalog_id="tiny", request_key="  ")
        job_id = first["job_id"]
        assert first == {"job_id": job_id, "state": "queued"}
        assert await host.refusal(ModelInUse, "models.remove", catalog_id="tiny") == {
            "catalog_id": "tiny",
            "holders": [{"kind": "job", "job_id": job_id}],
        }
        host.running.source.hold.set()
        await host.running.ended(job_id)
        status = await host.call("model.status", job_id=job_id)
        assert status == {"module_generation": 1, "kind": "models.download", "job_id": job_id, "state": "committed"}
        key = f"models.download:tiny:{MANIFEST.manifest_digest}"
        again = await host.call("models.download", catalog_id="tiny", request_key=key)
        assert again == {"job_id": job_id, "state": "committed"}
        assert await host.call("models.download.cancel", job_id=job_id) == again
        assert await host.call("models.remove", catalog_id="tiny") == {
            "catalog_id": "tiny",
            "removed_manifests": [MANIFEST.manifest_digest],
            "freed_bytes": len(MODEL),
        }


async def test_a_running_download_is_cancelled_for_everybody(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        host.running.source.hold = anyio.Event()
        job_id = (await host.call("models.download", catalog_id="tiny"))["job_id"]
        await host.running.source.waiting.wait()
        status = await host.call("model.status", job_id=job_id)
        assert status["state"] == "downloading"
        assert (status["bytes_done"], status["bytes_total"]) == (len(MODEL) // 2, len(MODEL))
        assert await host.call("models.download.cancel", job_id=job_id) == {"job_id": job_id, "state": "cancelled"}


async def test_a_key_of_another_manifest_conflicts(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        job = await host.call("models.download", catalog_id="tiny", request_key="k")
        host.catalog.manifest = manifest_of({"model": MODEL}, version=2)
        details = await host.refusal(IdempotencyConflict, "models.download", catalog_id="tiny", request_key=" k ")
        assert details == {"request_key": "k", "job_id": job["job_id"]}
        await host.running.ended(job["job_id"])


async def test_cancelling_what_is_no_download_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        for job_id in ("models-download-9-9", "model-load-1-1", "embed-1"):
            assert await host.refusal(InvalidRequest, "models.download.cancel", job_id=job_id) == {"job_id": job_id}


async def test_content_is_pinned_marked_and_removed(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        source = tmp_path / "a file.bin"
        source.write_bytes(b"mine")
        digest = hashlib.sha256(b"mine").hexdigest()
        pinned = await host.call("cache.pin", source_url=str(source), format="raw", module_id="mine")
        assert pinned["cache_root"] == str(tmp_path / "models")
        host_id = host.running.room.cache.owner
        assert pinned["artifact"] == {
            "digest": f"sha256:{digest}",
            "size_bytes": 4,
            "source_url": source.as_uri(),
            "format": "raw",
            "validation_state": "valid",
            "pins": [f"{host_id}/operator/mine"],
        }
        also = await host.call("cache.pin", digest=f"sha256:{digest}")
        assert len(also["artifact"]["pins"]) == 2
        kept = {"digest": f"sha256:{digest}", "outcome": "kept", "reason": "pinned_by_requesting_module"}
        assert await host.call("cache.gc", grace_ms=0) == {"module_generation": 1, "outcomes": [kept]}
        await host.call("cache.pin", digest=digest, module_id="mine", pinned=False)
        await host.call("cache.pin", digest=digest, pinned=False)
        now_ms = host.running.clock_ms[0]
        marked = {"digest": f"sha256:{digest}", "outcome": "marked", "delete_after_ms": now_ms + 60_000}
        assert (await host.call("cache.gc", digest=digest))["outcomes"] == [marked]
        host.running.clock_ms[0] += 60_000
        deleted = {"digest": f"sha256:{digest}", "outcome": "deleted", "freed_bytes": 4}
        assert (await host.call("cache.gc"))["outcomes"] == [deleted]
        assert (await host.call("cache.gc"))["outcomes"] == []


async def test_a_foreign_pin_and_a_reader_keep_content(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        (tmp_path / "f").write_bytes(b"x")
        digest = (await host.call("cache.pin", source_url=str(tmp_path / "f")))["artifact"]["digest"][7:]
        cache = host.running.room.cache
        cache.pin(digest, "host-of-another")
        await host.call("cache.pin", digest=digest, pinned=False)
        (outcome,) = (await host.call("cache.gc"))["outcomes"]
        assert outcome["reason"] == "pinned_by_foreign_module"
        with cache.lease(digest):
            with pytest.raises(QueueFull) as refused:
                await host.call("cache.gc", digest=digest)
            assert refused.value.retry_after_ms == 250
            (outcome,) = (await host.call("cache.gc"))["outcomes"]
            assert outcome["reason"] == "shared_reader_or_gc_active"


@pytest.mark.parametrize(
    ("source", "digest"),
    [
        ("https://hub.example/o/m/resolve/abc/x.bin", None),
        ("https://hub.example/o/m/resolve/main/x.bin", "a" * 64),
        ("https://hub.example/o/m/resolve/main", "a" * 64),
        ("https://hub.example/o/m/resolve%2Fmain/x.bin", "a" * 64),
        ("https://hub.example/o/m/resolve%2fm%61in?download=true", "a" * 64),
        ("https://hub.example/o/m/resolve//./main/x.bin", "a" * 64),
        ("file:///etc/hostname?x", None),
        ("file:///etc/hostname#x", None),
        ("/", None),
        ("file:///", None),
        ("ftp://hub.example/x", "a" * 64),
        ("relative/x", None),
    ],
)
async def test_a_source_that_may_not_be_asked_is_refused_unasked(
    tmp_path: Path, source: str, digest: str | None
) -> None:
    async with served(tmp_path) as host:
        params = {"source_url": source, **({"expected_digest": digest} if digest else {})}
        assert await host.refusal(InvalidRequest, "cache.pin", **params) == {"source_url": source}
        assert host.running.source.fetched == []


async def test_the_scheme_of_an_address_has_no_case(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        await host.call("cache.pin", source_url="HTTPS://h.example/w/x.bin", expected_digest=SHA)
        assert host.running.source.fetched == ["x.bin"]


async def test_an_address_is_fetched_once_and_a_file_is_held_against_its_digest(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        for _ in range(2):
            answer = await host.call("cache.pin", source_url="https://h.example/w/x.bin", expected_digest=SHA)
            assert answer["artifact"]["digest"] == f"sha256:{SHA}"
        assert host.running.source.fetched == ["x.bin"]
        (tmp_path / "f").write_bytes(b"other")
        details = await host.refusal(ArtifactInvalid, "cache.pin", source_url=str(tmp_path / "f"), expected_digest=SHA)
        assert details["expected_sha256"] == SHA
        gone = await host.refusal(ArtifactInvalid, "cache.pin", source_url=str(tmp_path / "gone"))
        assert gone["file"] == "gone"
        assert await host.refusal(InvalidRequest, "cache.pin", digest="a" * 64) == {"digest": "a" * 64}


async def test_a_tokenizer_is_recorded_by_its_own_identity(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        digests = set()
        for number, text in enumerate(('{"padding": 1, "model": {}}', '{"model": {}, "truncation": {"x": 2}}')):
            (tmp_path / "tokenizer.json").write_text(text)
            (tmp_path / "model").write_text(str(number))
            answer = await host.call(
                "cache.pin", source_url=str(tmp_path / "model"), tokenizer_path=str(tmp_path / "tokenizer.json")
            )
            digests.add(answer["artifact"]["sanitized_tokenizer_digest"])
        assert len(digests) == 1


async def test_a_tokenizer_that_is_none_is_refused_by_its_parameter(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a b c")
    async with served(tmp_path) as host:
        with pytest.raises(InvalidRequest, match=r"tokenizer_path '.*words' .* is not JSON") as refused:
            await host.call("cache.pin", source_url="/a", tokenizer_path=str(tmp_path / "words"))
        assert refused.value.details == {"tokenizer_path": str(tmp_path / "words")}


async def test_a_cache_that_cannot_be_used_is_said_on_the_channel(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        (tmp_path / "models" / "blobs").rmdir()
        (tmp_path / "models" / "blobs").write_text("")
        for method, params in (("models.download", {"catalog_id": "tiny"}), ("cache.gc", {})):
            with pytest.raises(StoreFailure, match="cannot be used") as refused:
                await host.call(method, **params)
            assert refused.value.channel
