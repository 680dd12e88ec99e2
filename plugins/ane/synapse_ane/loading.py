"""LOAD of the direct engine: the checkpoint's own weights, programs made for each shape that is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synapse_ane.core_ml_runtime import CoreMLRuntime
from synapse_ane.graph_backend import ModelIdentity, ProgramBackend
from synapse_ane.package_store import PackageStore
from synapse_ane.scratch_folder import scratch_folder
from synapse_ane.shape_ladder import RUNGS, ShapeLadder
from synapse_ane.shape_table import ShapeTable
from synapse_host.hookspecs import DType, EmbedBatch, LoadSpec, Phase, PluginError, Progress
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.loading import WayOut, load_engine, way_out_of
from synapse_host.owned_engine.weights import CheckpointWeights

#: The only activation type: the Neural Engine computes in half precision.
DTYPES: tuple[DType, ...] = ("f16",)
#: Key of LOAD that names the folder of packages; without it they last as long as the model.
PACKAGES = "package_cache_root"


#: Key of LOAD that says who decides which shapes are compiled: with ``explicit``, the host alone.
ADMISSION = "shape_admission"


@dataclass
class AneModel:
    """A loaded engine, its programs, and the folder of its packages, where that is its own."""

    engine: OwnedEngine
    programs: ProgramBackend
    way_out: WayOut
    own_folder: Path | None

    @property
    def dims(self) -> int:
        """Width of a vector; 0 for a model that makes none."""
        return self.engine.dims

    @property
    def buckets(self) -> list[int]:
        """The shapes a row may be padded to."""
        return list(self.engine.buckets or ())

    def admit(self, shape: int, progress: Progress) -> Mapping[str, Any]:
        """Compile the programs of ``shape`` and run them once, where it is not resident; the inventory of the model.

        Raises:
            PluginError: invalid_request for what is no shape of the lane, ane_residency_limit where four are resident,
                inference_failed where Core ML refuses a program; the shape is not resident then.

        """
        programs = self.programs
        if shape in programs.shapes.resident:
            return programs.inventory()
        programs.shapes.admit(shape)
        try:
            self._run_once(shape, progress)
        except RuntimeError as refused:
            programs.drop(shape)
            raise PluginError("inference_failed", f"shape {shape} could not be compiled: {refused}") from refused
        except BaseException:
            programs.drop(shape)
            raise
        return programs.inventory()

    def evict(self, shape: int) -> bool:
        """Close the programs of ``shape``; False where it was not resident."""
        return self.programs.drop(shape)

    def unload(self) -> None:
        """Drop programs, weights and the packages nobody else will use."""
        self.engine.unload()
        if self.own_folder is not None:
            shutil.rmtree(self.own_folder, ignore_errors=True)

    def _run_once(self, shape: int, progress: Progress) -> None:
        def reported(completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None:
            progress(completed, "control")

        # The shortest row that takes this shape.
        row = np.zeros(max([rung for rung in self.buckets if rung < shape], default=0) + 1, np.int32)
        if self.engine.settings.task == "rerank":
            self.engine.rerank([row], reported)
            return
        batch = EmbedBatch(row, [len(row)], ["admission"], self.way_out.pooling, self.way_out.normalize)
        self.engine.embed(batch, reported)


def load(spec: LoadSpec, progress: Progress, runtime: CoreMLRuntime, kernel_revision: str) -> AneModel:
    """Open the checkpoint and make the program of its shortest shape; record it only, where the host admits shapes.

    Raises:
        PluginError: as the shared engine's loading, or load_failed where the disk takes no folder for packages.

    """
    if spec.max_tokens > RUNGS[-1]:
        raise PluginError(
            "config_invalid", f"max_tokens {spec.max_tokens} passes the longest shape, {RUNGS[-1]}; lower max_tokens"
        )
    root = spec.runtime_config.get(PACKAGES)
    # Where a worker is killed, the next one removes it.
    own = None if root else scratch_folder()
    folder = Path(root) if root else own
    assert folder is not None
    identity = ModelIdentity(spec.artifact_digest, _digest_of(spec), kernel_revision)
    explicit = _explicit(spec)
    made: list[ProgramBackend] = []

    def backend(weights: CheckpointWeights, settings: ModelSettings) -> ProgramBackend:
        shapes = ShapeTable(ShapeLadder(settings.max_tokens).buckets(), explicit=explicit)
        made.append(
            ProgramBackend(weights, identity, settings.max_tokens, PackageStore(folder), runtime, shapes, explicit)
        )
        return made[0]

    try:
        engine = load_engine(spec, DTYPES, backend, progress, ShapeLadder)
    except BaseException:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        raise
    made[0].recording = False
    return AneModel(engine, made[0], way_out_of(spec), own)


def _explicit(spec: LoadSpec) -> bool:
    asked = spec.runtime_config.get(ADMISSION, "on-use")
    if asked not in ("on-use", "explicit"):
        raise PluginError("config_invalid", f"{ADMISSION} {asked!r} is neither 'on-use' nor 'explicit'; correct it")
    return asked == "explicit"


def _digest_of(spec: LoadSpec) -> str:
    """SHA-256 of the parsed config.json: two spellings of one config make the same programs."""
    content = json.dumps(spec.config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
