"""What a caller is told of a download, over the socket of a real host, whatever a real HTTP server does to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from synapse_host.errors import SynapseError
from synapse_host.testing.catalog_hub import host_of, hub_of, path_on
from synapse_host.testing.file_server import FileServer, Plan
from synapse_host.testing.models.tiny_catalog import OTHER, TinyCatalog, write_tiny_catalog
from synapse_host.testing.running_host import RunningHost

WEIGHTS = "model.safetensors"
#: State -> the members of its flat status, those every answer of the host has left out.
SHAPES = {
    "queued": set(),
    "downloading": {"bytes_done", "bytes_total"},
    "verifying": set(),
    "committed": set(),
    "failed": {"error"},
    "cancelled": set(),
}
AT_ONCE = {"Retry-After": "0"}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> TinyCatalog:
    return write_tiny_catalog(tmp_path_factory.mktemp("catalog"))


@pytest.fixture(scope="module")
def hub(catalog: TinyCatalog) -> Iterator[FileServer]:
    with hub_of(catalog) as running:
        yield running


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, catalog: TinyCatalog, hub: FileServer) -> Iterator[RunningHost]:
    with host_of(tmp_path_factory.mktemp("home"), catalog, hub) as running:
        yield running


def downloaded(host: RunningHost) -> dict[str, Any]:
    """The last status of a download; every one before it is held against its shape."""
    seen: list[dict[str, Any]] = []
    with host.client() as client:
        client.models_remove(OTHER)
        first = client.models_download(OTHER)
        assert first["state"] in ("queued", "downloading")
        with suppress(SynapseError):
            client.wait_for_download(first["job_id"], on_state=lambda status: seen.append(dict(status)))
        assert {status.pop("kind") for status in seen} == {"models.download"}
        for status in (first, *seen):
            assert status.pop("module_generation") == 1
            assert set(status) == {"job_id", "state", *SHAPES[status["state"]]}
        assert client.models_download_cancel(first["job_id"])["state"] == seen[-1]["state"]
    return seen[-1]


@pytest.mark.parametrize(
    ("plans", "reason", "status"),
    [
        *(pytest.param([Plan(status)], "http_status", status, id=str(status)) for status in (401, 403, 404, 416)),
        pytest.param([Plan(429, {"Retry-After": "61"})], "http_status", 429, id="429, for more than a minute"),
        *(
            pytest.param([Plan(each, AT_ONCE)] * 5, "http_status", each, id=f"{each}, again")
            for each in (429, 500, 503)
        ),
    ],
)
def test_a_server_that_refuses(
    host: RunningHost, catalog: TinyCatalog, hub: FileServer, plans: list[Plan], reason: str, status: int
) -> None:
    hub.plan(path_on(catalog, OTHER, WEIGHTS), *plans)
    error = downloaded(host)["error"]
    assert str(status) in error.pop("message")
    assert error == {
        "code": "download_failed",
        "class": "transient",
        "retry_after_ms": 1000,
        "safe_to_retry_same_request": True,
        "details": {"file": WEIGHTS, "reason": reason, "http_status": status},
    }


@pytest.mark.parametrize("lie", ["length", "zeros", "longer"])
def test_a_server_that_lies(host: RunningHost, catalog: TinyCatalog, hub: FileServer, lie: str) -> None:
    path = path_on(catalog, OTHER, WEIGHTS)
    body = hub.files[path]
    zeros = bytes(len(body))
    plan, size, digest = {
        "length": (Plan(length=len(body) + 1), len(body) + 1, None),
        "zeros": (Plan(body=zeros), len(body), hashlib.sha256(zeros).hexdigest()),
        "longer": (Plan(body=body + b"x", chunked=True), len(body) + 1, None),
    }[lie]
    hub.plan(path, plan)
    error = downloaded(host)["error"]
    assert WEIGHTS in error.pop("message")
    assert error == {
        "code": "artifact_invalid",
        "class": "permanent",
        "safe_to_retry_same_request": False,
        "details": {
            "file": WEIGHTS,
            "expected_sha256": hashlib.sha256(body).hexdigest(),
            "actual_sha256": digest,
            "expected_size": len(body),
            "actual_size": size,
            "recovery_op": "models.download",
        },
    }


def test_a_server_that_cuts_redirects_and_asks_for_patience(
    host: RunningHost, catalog: TinyCatalog, hub: FileServer
) -> None:
    path = path_on(catalog, OTHER, WEIGHTS)
    hub.files["/elsewhere"] = hub.files[path]
    hub.plan(path, Plan(503, AT_ONCE), Plan(cut_after=5_000), Plan(302, {"Location": "/elsewhere"}))
    assert downloaded(host)["state"] == "committed"
    (last,) = hub.requests("/elsewhere")
    assert last.headers["range"] == "bytes=5000-"
