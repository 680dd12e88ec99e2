"""From a LOAD to a loaded engine: the part every owned backend does alike, whatever its device.

What differs arrives as a function that makes the backend's ``GraphBackend``. Every refusal is a ``PluginError`` with
a code of the worker protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from synapse_host.hookspecs import DType, LoadSpec, PluginError, Pooling, Progress, Task
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.executables import GraphBackend
from synapse_host.owned_engine.family_table import MODEL_FORMAT, family_named
from synapse_host.owned_engine.weights import CheckpointWeights

#: Makes the backend of one model.
BackendFactory: TypeAlias = Callable[[CheckpointWeights, ModelSettings], GraphBackend]

#: What an owned engine can be loaded for.
_TASKS: tuple[Task, ...] = ("embed", "rerank")
_POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


@dataclass(frozen=True, slots=True)
class WayOut:
    """The pooling and normalisation a lane is certified with; its graphs are made at load."""

    pooling: Pooling
    normalize: bool


def load_engine(
    spec: LoadSpec, dtypes: Sequence[DType], make_backend: BackendFactory, progress: Progress
) -> OwnedEngine:
    """Open the checkpoint, make the graphs of short rows and run one row of one token.

    Raises:
        PluginError: operation_mismatch, model_unsupported, config_invalid, artifact_invalid, oom or load_failed.

    """
    settings = _settings(spec, dtypes)
    way_out = _way_out(spec)
    try:
        weights = CheckpointWeights.open(spec.artifact_fd, os.fstat(spec.artifact_fd).st_size)
        engine = OwnedEngine(make_backend(weights, settings), settings)
        engine.warm_up(way_out.pooling, way_out.normalize, progress)
    except PluginError:
        raise
    except MemoryError as full:
        raise PluginError("oom", f"no memory to load {spec.artifact_path}; free some or load a smaller model") from full
    except ValueError as fault:
        raise PluginError("artifact_invalid", f"{spec.artifact_path}: {fault}") from fault
    except (OSError, RuntimeError) as failure:
        raise PluginError("load_failed", f"{spec.artifact_path} could not be made executable: {failure}") from failure
    return engine


def available_threads() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _settings(spec: LoadSpec, dtypes: Sequence[DType]) -> ModelSettings:
    task = _task(spec)
    if spec.format != MODEL_FORMAT:
        raise PluginError(
            "model_unsupported", f"format {spec.format!r} is not {MODEL_FORMAT!r}; convert the checkpoint"
        )
    if spec.dtype not in dtypes:
        raise PluginError("config_invalid", f"dtype {spec.dtype!r} is not one of {', '.join(dtypes)} on this machine")
    family = family_named(spec.family)
    return ModelSettings(family, spec.config, spec.dtype, spec.max_tokens, _threads(spec), task, _pair_separator(spec))


def _task(spec: LoadSpec) -> Task:
    operation = spec.runtime_config.get("operation", "embed")
    for known in _TASKS:
        if operation == known:
            return known
    raise PluginError("operation_mismatch", f"operation {operation!r} is not one of {', '.join(_TASKS)}")


def _pair_separator(spec: LoadSpec) -> int | None:
    text = spec.runtime_config.get("pair_separator")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise PluginError("config_invalid", f"pair_separator {text!r} is no token id; leave it out or give one")
    return int(text)


def _threads(spec: LoadSpec) -> int:
    text = spec.runtime_config.get("threads", "0")
    if not (text.isascii() and text.isdigit()):
        raise PluginError("config_invalid", f"threads {text!r} is no decimal number; use 0 for all cores")
    return int(text) or available_threads()


def _way_out(spec: LoadSpec) -> WayOut:
    pooling = spec.runtime_config.get("pooling", "mean")
    normalize = spec.runtime_config.get("normalize", "true")
    for known in _POOLINGS:
        if pooling == known and normalize in ("true", "false"):
            return WayOut(known, normalize == "true")
    raise PluginError(
        "config_invalid",
        f"pooling {pooling!r} with normalize {normalize!r} is not one of {', '.join(_POOLINGS)} with true or false",
    )
