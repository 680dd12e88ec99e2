"""A plugin made of plain functions, and a worker's answering half around it, without a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synapse_host.hookspecs import BackendDescription, PackedSupport
from synapse_host.worker.hook_calls import HookCalls
from synapse_host.worker_protocol.messages import DEFAULT_MAX_FRAME, Message

#: Describes a backend that declares everything; which hooks there are is up to the plugin.
DESCRIPTION = BackendDescription(
    backend="plain",
    engine="plain-engine",
    engine_version="1",
    build_flags={},
    tasks=("embed", "rerank", "generate"),
    model_formats=("safetensors-package",),
    families=("bert",),
    dtypes=("f32",),
    device_class="cpu",
    platforms=(),
    extra="",
    owned=False,
    abort_capable=False,
    packed=PackedSupport(widths=(256, 384), max_rows=8),
)


class PlainModel:
    """What the plugin's load returns; ``facts`` replaces or adds attributes."""

    def __init__(self, **facts: Any) -> None:
        self.dims: Any = 4
        self.buckets: Any = None
        vars(self).update(facts)


class PlainPlugin:
    """A plugin whose hooks are the functions given; loading gives ``model`` and unloading always succeeds."""

    def __init__(self, model: PlainModel | None = None, **hooks: Callable[..., Any]) -> None:
        loaded = model or PlainModel()
        self._hooks: Mapping[str, Callable[..., Any]] = {
            "synapse_load": lambda **_: loaded,
            "synapse_unload": lambda **_: True,
            **hooks,
        }

    @property
    def operations(self) -> frozenset[str]:
        """Names of the hooks there are."""
        return frozenset(self._hooks)

    def hook(self, name: str) -> Callable[..., Any]:
        """One hook."""
        return self._hooks[name]


def hook_calls(
    plugin: PlainPlugin, *, max_frame: int = DEFAULT_MAX_FRAME, sent: list[Message] | None = None
) -> HookCalls:
    """The answering half of a worker that holds ``plugin``; PROGRESS frames go to ``sent``."""
    return HookCalls(plugin, DESCRIPTION, max_frame, (sent if sent is not None else []).append)
