"""From a LOAD to a loaded engine: the part every owned backend does alike, whatever its device.

What differs arrives as a function that makes the backend's ``GraphBackend``. Every refusal is a ``PluginError`` with
a code of the worker protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from synapse_host.hookspecs import DType, LoadSpec, PluginError, Pooling, Progress, Task
from synapse_host.model_files.shard_index import MAX_INDEX_BYTES, read_shard_index
from synapse_host.owned_engine.checkpoint_shapes import checkpoint_shapes
from synapse_host.owned_engine.decoder import DecodingBackend, OwnedDecoder
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.executables import GraphBackend
from synapse_host.owned_engine.family_table import MODEL_FORMAT, family_named
from synapse_host.owned_engine.shape_policy import BucketLadder
from synapse_host.owned_engine.unread_tensors import note_unread
from synapse_host.owned_engine.weights import CheckpointWeights

#: Makes the backend of one model.
BackendFactory: TypeAlias = Callable[[CheckpointWeights, ModelSettings], GraphBackend]

#: Makes the backend of one model that generates.
DecodingFactory: TypeAlias = Callable[[CheckpointWeights, ModelSettings], DecodingBackend]

#: Makes the padded lengths of a lane from its max_tokens.
LadderFactory: TypeAlias = Callable[[int], BucketLadder]

#: What an owned engine can be loaded for, and what an owned decoder.
_ENGINE_TASKS: tuple[Task, ...] = ("embed", "rerank")
_DECODER_TASKS: tuple[Task, ...] = ("generate",)
_POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


@dataclass(frozen=True, slots=True)
class WayOut:
    """The pooling and normalisation a lane is certified with; its graphs are made at load."""

    pooling: Pooling
    normalize: bool


#: Refuses, with ``MemoryError``, a model too large for the device, by the shapes of its tensors.
RoomCheck: TypeAlias = Callable[[CheckpointWeights, ModelSettings, WayOut], None]


def load_engine(
    spec: LoadSpec,
    dtypes: Sequence[DType],
    make_backend: BackendFactory,
    progress: Progress,
    ladder: LadderFactory | None = None,
    require_room: RoomCheck | None = None,
) -> OwnedEngine:
    """Open the checkpoint, make the graphs of short rows and run one row of one token.

    ``ladder`` makes the padded lengths from the lane's max_tokens, for backends whose shapes are few. ``require_room``
    is asked before a tensor is read.

    Raises:
        PluginError: operation_mismatch, model_unsupported, config_invalid, artifact_invalid, oom or load_failed.

    """
    settings = _settings(spec, dtypes, _ENGINE_TASKS)
    way_out = way_out_of(spec)
    with _typed_refusals(spec):
        if require_room is not None:
            require_room(checkpoint_shapes(spec), settings, way_out)
        lengths = None if ladder is None else ladder(settings.max_tokens)
        engine = OwnedEngine(make_backend(_weights(spec), settings), settings, lengths)
        engine.warm_up(way_out.pooling, way_out.normalize, progress)
    note_unread(spec, settings, way_out.pooling, way_out.normalize)
    return engine


def load_decoder(
    spec: LoadSpec, dtypes: Sequence[DType], make_backend: DecodingFactory, progress: Progress
) -> OwnedDecoder:
    """Open the checkpoint and read one token; a token that ends a text is one of config.json or of ``stop_ids``.

    Raises:
        PluginError: as ``load_engine``.

    """
    settings = _settings(spec, dtypes, _DECODER_TASKS)
    stop_ids = _stop_ids(spec)
    with _typed_refusals(spec):
        decoder = OwnedDecoder(make_backend(_weights(spec), settings), settings, stop_ids)
        decoder.warm_up(progress)
    note_unread(spec, settings)
    return decoder


def loads_decoder(spec: LoadSpec) -> bool:
    """True when the model is to generate, so that ``load_decoder`` and not ``load_engine`` loads it."""
    return spec.runtime_config.get("operation") in _DECODER_TASKS


def _weights(spec: LoadSpec) -> CheckpointWeights:
    size = os.fstat(spec.artifact_fd).st_size
    if not spec.shards:
        return CheckpointWeights.open(spec.artifact_fd, size)
    index = read_shard_index(os.pread(spec.artifact_fd, min(size, MAX_INDEX_BYTES + 1), 0))
    return CheckpointWeights.open_sharded(index, spec.shards)


@contextmanager
def _typed_refusals(spec: LoadSpec) -> Iterator[None]:
    try:
        yield
    except PluginError:
        raise
    except MemoryError as full:
        told = f" ({full})" if str(full) else ""
        text = f"no memory to load {spec.artifact_path}{told}; free some or load a smaller model"
        raise PluginError("oom", text) from full
    except ValueError as fault:
        raise PluginError("artifact_invalid", f"{spec.artifact_path}: {fault}") from fault
    except (OSError, RuntimeError) as failure:
        text = f"{spec.artifact_path} could not be made executable: {failure}; the host's log has what the library said"
        raise PluginError("load_failed", text) from failure


def available_threads() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _settings(spec: LoadSpec, dtypes: Sequence[DType], tasks: Sequence[Task]) -> ModelSettings:
    task = _task(spec, tasks)
    if spec.format != MODEL_FORMAT:
        raise PluginError(
            "model_unsupported", f"format {spec.format!r} is not {MODEL_FORMAT!r}; convert the checkpoint"
        )
    if spec.dtype not in dtypes:
        raise PluginError("config_invalid", f"dtype {spec.dtype!r} is not one of {', '.join(dtypes)} on this machine")
    family = family_named(spec.family)
    return ModelSettings(
        family, spec.config, spec.dtype, spec.max_tokens, _threads(spec), task, pair_separator_of(spec)
    )


def _task(spec: LoadSpec, tasks: Sequence[Task]) -> Task:
    operation = spec.runtime_config.get("operation", "embed")
    for known in tasks:
        if operation == known:
            return known
    raise PluginError("operation_mismatch", f"operation {operation!r} is not one of {', '.join(tasks)}")


def _stop_ids(spec: LoadSpec) -> list[int]:
    """The end-of-text tokens of config.json and those LOAD adds as decimals joined by commas."""
    named = spec.config.get("eos_token_id")
    ids = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise PluginError("config_invalid", f"eos_token_id {named!r} is no token id and no list of them; correct it")
    added = [part for part in spec.runtime_config.get("stop_ids", "").split(",") if part]
    if not all(part.isascii() and part.isdigit() for part in added):
        raise PluginError("config_invalid", f"stop_ids {','.join(added)!r} are no token ids; join decimals by commas")
    return [*ids, *map(int, added)]


def pair_separator_of(spec: LoadSpec) -> int | None:
    """The token that ends the first text of a pair, if LOAD names one; raises ``PluginError`` with config_invalid."""
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


def way_out_of(spec: LoadSpec) -> WayOut:
    """What LOAD says of pooling and normalisation; raises ``PluginError`` with config_invalid."""
    pooling = spec.runtime_config.get("pooling", "mean")
    normalize = spec.runtime_config.get("normalize", "true")
    for known in _POOLINGS:
        if pooling == known and normalize in ("true", "false"):
            return WayOut(known, normalize == "true")
    raise PluginError(
        "config_invalid",
        f"pooling {pooling!r} with normalize {normalize!r} is not one of {', '.join(_POOLINGS)} with true or false",
    )
