"""LOAD and UNLOAD: from the protocol's string pairs to a ``LoadSpec``, and the table of what is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from synapse_host.hookspecs import BackendDescription, DType, LoadedModel, LoadSpec, PluginError, Progress
from synapse_host.worker.artifact import open_shards, open_verified, read_verified_config
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker_protocol.messages import Load


@dataclass(frozen=True, slots=True)
class Resident:
    """One loaded model and the descriptor it was loaded from, open as long as the model is.

    ``shapes`` and ``packed_widths`` are what was compiled for it since, for backends that admit such.
    """

    model: LoadedModel
    descriptor: int
    dims: int
    buckets: list[int] | None
    operation: str = "embed"
    shapes: set[int] = field(default_factory=set)
    packed_widths: set[int] = field(default_factory=set)


class ResidentModels:
    """The models of this worker by ``model_ref``."""

    def __init__(self, plugin: Plugin, description: BackendDescription) -> None:
        self._plugin = plugin
        self._description = description
        self._residents: dict[str, Resident] = {}
        self._loads = 0

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def by_ref(self) -> Mapping[str, Resident]:
        """What is loaded, by ``model_ref``."""
        return self._residents

    def load(self, request: Load, progress: Progress) -> tuple[str, Resident]:
        """Verify, load and keep one model; raises ``PluginError``, or whatever the hook raises."""
        _check_supported(request, self._description)
        config = _config(request.runtime_config)
        descriptor = open_verified(request.artifact_path, request.artifact_digest)
        try:
            with open_shards(request.runtime_config.get("shards", "{}")) as shards:
                spec = _load_spec(request, config, descriptor, shards)
                model = self._plugin.hook("synapse_load")(spec=spec, progress=progress)
            resident = _resident(model, descriptor, _operation(request))
        except BaseException:
            os.close(descriptor)
            raise
        self._loads += 1
        model_ref = f"model-{self._loads}"
        self._residents[model_ref] = resident
        return model_ref, resident

    def get(self, model_ref: str) -> Resident:
        """The resident ``model_ref``; raises ``PluginError`` with ``model_not_loaded``."""
        resident = self._residents.get(model_ref)
        if resident is None:
            known = ", ".join(self._residents) or "none"
            raise PluginError("model_not_loaded", f"model_ref {model_ref!r} is not loaded here; loaded: {known}")
        return resident

    def unload(self, model_ref: str) -> None:
        """Drop one model; raises ``PluginError`` when it is unknown or the plugin keeps it."""
        resident = self.get(model_ref)
        if self._plugin.hook("synapse_unload")(model=resident.model) is not True:
            raise PluginError("inference_failed", f"the backend did not free {model_ref!r}; restart the worker")
        del self._residents[model_ref]
        os.close(resident.descriptor)


def _check_supported(request: Load, description: BackendDescription) -> None:
    config = request.runtime_config
    operation = _operation(request)
    if operation not in description.tasks:
        raise PluginError("operation_mismatch", _not_served(description, "operation", operation, description.tasks))
    formats, families, dtypes = description.model_formats, description.families, description.dtypes
    if request.format not in formats:
        raise PluginError("model_unsupported", _not_served(description, "format", request.format, formats))
    family = _required(config, "family")
    if family not in families:
        raise PluginError("model_unsupported", _not_served(description, "family", family, families))
    dtype = _required(config, "dtype")
    if dtype not in dtypes:
        raise PluginError("config_invalid", _not_served(description, "dtype", dtype, dtypes))


def _operation(request: Load) -> str:
    return request.runtime_config.get("operation", "embed")


def _not_served(description: BackendDescription, what: str, value: str, served: tuple[str, ...]) -> str:
    return f"backend {description.backend!r} does not serve {what} {value!r}; it serves {', '.join(served) or 'none'}"


def _config(runtime_config: Mapping[str, str]) -> dict[str, Any]:
    # A format such as GGUF carries its own configuration; then the host names no file.
    path = runtime_config.get("config_path")
    if path is None:
        return {}
    return read_verified_config(path, _required(runtime_config, "config_digest"))


def _load_spec(request: Load, config: dict[str, Any], descriptor: int, shards: Mapping[str, int]) -> LoadSpec:
    pairs = request.runtime_config
    return LoadSpec(
        artifact_path=request.artifact_path,
        artifact_fd=descriptor,
        artifact_digest=request.artifact_digest,
        format=request.format,
        family=pairs["family"],
        config=config,
        dtype=cast("DType", pairs["dtype"]),
        max_tokens=_positive(pairs, "max_tokens"),
        runtime_config=pairs,
        shards=shards,
    )


def _resident(model: Any, descriptor: int, operation: str) -> Resident:
    dims = getattr(model, "dims", None)
    if not isinstance(dims, int) or dims < (1 if operation == "embed" else 0):
        raise TypeError(f"synapse_load returned a {type(model).__name__} whose dims is {dims!r}; return a LoadedModel")
    buckets = getattr(model, "buckets", None)
    ladder = None if buckets is None else [int(bucket) for bucket in buckets]
    if ladder and min(ladder) < 1:
        raise TypeError(
            f"synapse_load returned a {type(model).__name__} with the bucket {min(ladder)}; buckets hold tokens"
        )
    return Resident(model, descriptor, dims, ladder, operation)


def _required(pairs: Mapping[str, str], key: str) -> str:
    if key not in pairs:
        raise PluginError(
            "config_invalid", f"runtime_config lacks {key!r}; it has {', '.join(sorted(pairs)) or 'none'}"
        )
    return pairs[key]


def _positive(pairs: Mapping[str, str], key: str) -> int:
    text = _required(pairs, key)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise PluginError("config_invalid", f"runtime_config {key} is {text!r}, not a positive whole number")
    return int(text)
