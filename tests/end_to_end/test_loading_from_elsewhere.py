"""model.load of files that come from a hub or an address, on a real host and a server on the loopback."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import ArtifactInvalid, DownloadFailed, InvalidRequest, SynapseError
from synapse_host.testing.catalog_hub import host_of, hub_of, path_on
from synapse_host.testing.file_server import FileServer, Plan
from synapse_host.testing.models.tiny_catalog import OTHER, TinyCatalog, write_tiny_catalog

FILES = {"model": "model.safetensors", "tokenizer": "tokenizer.json", "config": "config.json"}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> TinyCatalog:
    return write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny")


@pytest.fixture
def hub(catalog: TinyCatalog) -> Iterator[FileServer]:
    with hub_of(catalog) as serving:
        yield serving


def of_hub(catalog: TinyCatalog, hub: FileServer, **change: Any) -> dict[str, Any]:
    """The parameters that load an entry's files as a model of one's own."""
    entry = catalog.catalog().entry(OTHER)
    assert entry is not None
    files = {
        role: {"url": name, "sha256": hashlib.sha256(hub.files[path_on(catalog, OTHER, name)]).hexdigest()}
        for role, name in FILES.items()
    }
    return {
        "source": "hf", "repo": entry.upstream.hf_repo, "revision": entry.upstream.revision, "engine": "reference",
        "files": files, **change,
    }  # fmt: skip


def loaded(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    return client.wait_for_load(client.call("model.load", params)["job_id"])


def test_a_model_of_a_hub_is_loaded_and_comes_back_without_it(
    catalog: TinyCatalog, hub: FileServer, tmp_path: Path
) -> None:
    with host_of(tmp_path, catalog, hub) as host:
        with host.client() as client:
            status = loaded(client, of_hub(catalog, hub))
            assert status["state"] == "ready"
            assert "bytes_done" not in status
            name, pin = status["model_id"], status["fingerprint"]
            assert name.startswith(f"{OTHER}-")
            again = loaded(client, of_hub(catalog, hub, model_id=name))
            assert again["fingerprint"] == pin
            assert [len(hub.requests(path_on(catalog, OTHER, file))) for file in FILES.values()] == [1, 1, 1]
            entry = catalog.source(catalog.catalog().entries[1], "model.safetensors").parent
            local = loaded(client, {"source": "file", "path": str(entry), "engine": "reference", "model_id": "local"})
            assert local["fingerprint"] == pin
        asked = len(hub.seen)
        host.stop()
        host.start()
        with host.client() as client:
            assert client.model_status(model_id=name)["fingerprint"] == pin
            # What lies there still loads.
            assert client.wait_for_load(client.call("model.load", of_hub(catalog, hub, model_id=name))["job_id"])
    assert len(hub.seen) == asked


def test_what_is_not_pinned_is_refused_before_the_network(
    catalog: TinyCatalog, hub: FileServer, tmp_path: Path
) -> None:
    unpinned = (
        of_hub(catalog, hub, revision="main"),
        of_hub(catalog, hub, files=dict(FILES)),
        {"source": "url", "url": hub.url, "files": dict(FILES), "engine": "reference"},
    )
    with host_of(tmp_path, catalog, hub) as host, host.client() as client:
        for params in unpinned:
            with pytest.raises(InvalidRequest) as refused:
                client.call("model.load", params)
            assert refused.value.details is not None
        with pytest.raises(SynapseError) as not_owned:
            loaded(client, of_hub(catalog, hub, engine="llama"))
        assert not_owned.value.code in ("invalid_request", "backend_unavailable")
    assert hub.seen == []


def test_content_that_is_not_what_is_pinned_registers_nothing(
    catalog: TinyCatalog, hub: FileServer, tmp_path: Path
) -> None:
    hub.plan(path_on(catalog, OTHER, "config.json"), Plan(body=b"{}"), Plan(status=404))
    with host_of(tmp_path, catalog, hub) as host, host.client() as client:
        with pytest.raises(ArtifactInvalid) as other:
            loaded(client, of_hub(catalog, hub))
        assert (other.value.details or {})["file"] == "config.json"
        with pytest.raises(DownloadFailed) as missing:
            loaded(client, of_hub(catalog, hub))
        assert missing.value.details == {"file": "config.json", "reason": "http_status", "http_status": 404}
        assert client.models_list()["models"] == []
        assert loaded(client, of_hub(catalog, hub))["state"] == "ready"


def test_addresses_and_local_files_make_one_model(catalog: TinyCatalog, hub: FileServer, tmp_path: Path) -> None:
    params = of_hub(catalog, hub)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_bytes(hub.files[path_on(catalog, OTHER, "config.json")])
    files = {
        role: {**params["files"][role], "url": hub.url + path_on(catalog, OTHER, FILES[role])}
        for role in ("model", "tokenizer")
    }
    with host_of(tmp_path / "home", catalog, hub) as host, host.client() as client:
        whole = loaded(client, params)
        mixed = {"source": "file", "path": str(mine), "files": files, "engine": "reference", "model_id": "mixed"}
        assert loaded(client, mixed)["fingerprint"] == whole["fingerprint"]
