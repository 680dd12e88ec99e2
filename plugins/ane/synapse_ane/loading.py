"""LOAD of the direct engine: the checkpoint's own weights, programs made for each shape that is used."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from synapse_ane.core_ml_runtime import CoreMLRuntime
from synapse_ane.graph_backend import ModelIdentity, ProgramBackend
from synapse_ane.package_store import PackageStore
from synapse_ane.shape_ladder import ShapeLadder
from synapse_host.hookspecs import DType, LoadSpec, Progress
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.loading import load_engine
from synapse_host.owned_engine.weights import CheckpointWeights

#: The only activation type: the Neural Engine computes in half precision.
DTYPES: tuple[DType, ...] = ("f16",)
#: Key of LOAD that names the folder of packages; without it they last as long as the model.
PACKAGES = "package_cache_root"


@dataclass
class AneModel:
    """A loaded engine and the folder of its packages, where that is its own."""

    engine: OwnedEngine
    own_folder: tempfile.TemporaryDirectory[str] | None

    @property
    def dims(self) -> int:
        """Width of a vector; 0 for a model that makes none."""
        return self.engine.dims

    @property
    def buckets(self) -> list[int]:
        """The shapes a row may be padded to."""
        return list(self.engine.buckets or ())

    def unload(self) -> None:
        """Drop programs, weights and the packages nobody else will use."""
        self.engine.unload()
        if self.own_folder is not None:
            self.own_folder.cleanup()


def load(spec: LoadSpec, progress: Progress, runtime: CoreMLRuntime, kernel_revision: str) -> AneModel:
    """Open the checkpoint and make the program of its shortest shape.

    Raises:
        PluginError: as the shared engine's loading.

    """
    root = spec.runtime_config.get(PACKAGES)
    own = None if root else tempfile.TemporaryDirectory(prefix="synapse-ane-")
    folder = Path(root or (own.name if own else ""))
    identity = ModelIdentity(spec.artifact_digest, _digest_of(spec), kernel_revision)

    def backend(weights: CheckpointWeights, settings: ModelSettings) -> ProgramBackend:
        return ProgramBackend(weights, identity, settings.max_tokens, PackageStore(folder), runtime)

    try:
        return AneModel(load_engine(spec, DTYPES, backend, progress, ShapeLadder), own)
    except BaseException:
        if own is not None:
            own.cleanup()
        raise


def _digest_of(spec: LoadSpec) -> str:
    """SHA-256 of the parsed config.json: two spellings of one config make the same programs."""
    content = json.dumps(spec.config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
