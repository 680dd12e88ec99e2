"""The model cache of this user's settings, for commands that need no running host."""

from __future__ import annotations

from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.layout import CacheLayout
from synapse_host.errors import StoreFailure
from synapse_host.settings import load_settings
from synapse_host.store.upkeep import host_id_of


def local_cache() -> BlobCache:
    """The model cache of this user's settings; raises ``StoreFailure``, ``SettingsInvalid``."""
    root = load_settings().model_cache
    if root.exists() and not root.is_dir():
        raise StoreFailure(f"{root} is no directory, and the model cache should be there; move it away")
    if not root.is_dir():
        raise StoreFailure(f"there is no model cache at {root}; nothing was downloaded yet")
    return BlobCache(CacheLayout(root), "synapse-opctl")


def id_of_home(data_directory: Path) -> str | None:
    """The id of the host whose store is in a directory, None where there is none; raises ``StoreFailure``."""
    return host_id_of(data_directory / load_settings().paths.store_file.name)
