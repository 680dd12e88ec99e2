"""A hub on the loopback for a tiny catalog, and hosts that download from it: for end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from synapse_host.testing.file_server import FileServer
from synapse_host.testing.models.tiny_catalog import TinyCatalog
from synapse_host.testing.running_host import RunningHost

#: What would send a test's requests somewhere else.
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@contextmanager
def hub_of(catalog: TinyCatalog) -> Iterator[FileServer]:
    """A server with every file of the catalog's mirror."""
    files = {
        f"/{path.relative_to(catalog.mirror)}": path.read_bytes()
        for path in catalog.mirror.rglob("*")
        if path.is_file()
    }
    with FileServer(files) as hub:
        yield hub


def path_on(catalog: TinyCatalog, catalog_id: str, name: str) -> str:
    """Where the hub has one file of an entry."""
    entry = catalog.catalog().entry(catalog_id)
    assert entry is not None, catalog_id
    return f"/{catalog.source(entry, name).relative_to(catalog.mirror)}"


def host_of(
    home: Path, catalog: TinyCatalog, hub: FileServer, environment: Mapping[str, str] | None = None
) -> RunningHost:
    """A host that serves the catalog and downloads from the hub; start it by entering it."""
    return RunningHost(
        home,
        {
            **dict.fromkeys(_PROXIES, ""),
            **catalog.environment,
            "SYNAPSE_DOWNLOADS_ENDPOINT": hub.url,
            **(environment or {}),
        },
    )
