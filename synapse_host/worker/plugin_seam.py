"""What the worker needs of a loaded plugin, apart from how ``backends`` finds and checks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Plugin(Protocol):
    """One plugin, registered and checked; the worker holds exactly one."""

    @property
    def operations(self) -> frozenset[str]:
        """Names of the hooks the plugin implements, ``synapse_embed`` among them."""

    def hook(self, name: str) -> Callable[..., Any]:
        """The caller of one hook; it takes the hook's arguments by keyword."""


#: Loads the plugin registered under an entry-point name; raises whatever stops it.
PluginLoader = Callable[[str], Plugin]
