"""LOAD of a package set: unpacked, opened, tried on one row, and held against each other."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np

from synapse_ane.core_ml_runtime import CoreMLRuntime
from synapse_ane.package_model import Float32, PackageModel, PackageUse, ReadyPackage
from synapse_ane.package_set import Member, Package, invalid_set, members_of, open_set
from synapse_ane.scratch_folder import scratch_folder
from synapse_host.hookspecs import LoadSpec, PluginError, Progress
from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.owned_engine.loading import pair_separator_of, way_out_of

#: The ids every package is tried with; any vocabulary has them.
_TRIAL = np.arange(1, 9, dtype=np.int32)
#: How near the packages of one model must be on the same row: half precision and other padding move less.
_LEAST_COSINE = 0.99
_MOST_APART = 0.1


def load_set(spec: LoadSpec, progress: Progress, runtime: CoreMLRuntime) -> PackageModel:
    """Unpack the archives LOAD names into a folder of their own, and make every package ready.

    Raises:
        PluginError: config_invalid for LOAD's own faults, artifact_invalid for a set that is not whole, not of one
            model, or not for this task, load_failed where Core ML or the disk refuses. Nothing is left on disk then.

    """
    members = _members(spec)
    use = _use(spec)
    folder = scratch_folder()
    try:
        packages = open_set(members, folder)
        _check_length(spec, packages)
        ready = []
        for place, package in enumerate(packages):
            ready.append(_made_ready(runtime, package))
            progress(place + 1, "setup")
        model = PackageModel(ready, use, folder)
        model.dims = _tried(model)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return model


def _members(spec: LoadSpec) -> list[Member]:
    members = members_of(spec.runtime_config)
    first = members[0]
    if (str(first.path), first.sha256) != (spec.artifact_path, spec.artifact_digest):
        raise PluginError(
            "config_invalid", f"artifact_paths begins with {first.path} and the artifact is {spec.artifact_path}"
        )
    return members


def _use(spec: LoadSpec) -> PackageUse:
    operation = spec.runtime_config.get("operation", "embed")
    if operation not in ("embed", "rerank"):
        raise PluginError("operation_mismatch", f"operation {operation!r} is not one of embed, rerank")
    way_out = way_out_of(spec)
    family = FAMILIES.get(spec.family)
    read_scores = family.read_scores if family is not None and operation == "rerank" else None
    return PackageUse(operation == "rerank", way_out.pooling, way_out.normalize, pair_separator_of(spec), read_scores)


def _check_length(spec: LoadSpec, packages: Sequence[Package]) -> None:
    longest = packages[-1].length
    if spec.max_tokens > longest:
        raise PluginError(
            "config_invalid", f"max_tokens {spec.max_tokens} passes the longest package, {longest}; lower max_tokens"
        )


def _made_ready(runtime: CoreMLRuntime, package: Package) -> ReadyPackage:
    try:
        return ReadyPackage(package, runtime.load(package.directory, None), runtime.placement(package.directory, None))
    except RuntimeError as refused:
        raise PluginError("load_failed", f"{package.name} could not be made ready: {refused}") from refused


def _tried(model: PackageModel) -> int:
    """Run one short row through every package; the width of a vector, 0 for a reranker."""
    found = [_trial(model, ready) for ready in model.packages]
    names = [ready.package.name for ready in model.packages]
    for name, numbers in zip(names, found, strict=True):
        if not np.isfinite(numbers).all() or not numbers.any():
            raise invalid_set(f"{name} gives no numbers for a row of {len(_TRIAL)} tokens")
        if len(numbers) != len(found[0]):
            raise invalid_set(f"{names[0]} gives {len(found[0])} numbers and {name} {len(numbers)}")
        if not _is_near(model, found[0], numbers):
            raise invalid_set(f"{names[0]} and {name} disagree about one row: they are not of one model")
    return 0 if model.use.rerank else len(found[0])


def _trial(model: PackageModel, ready: ReadyPackage) -> Float32:
    row = _TRIAL[: ready.package.length]
    try:
        if not model.use.rerank:
            return model.vector(ready, row, model.use.pooling, normalize=False)
        numbers = ready.run(row, model.use.separator)
    except (PluginError, RuntimeError) as refused:
        raise invalid_set(f"{ready.package.name} does not take a row: {refused}") from refused
    if numbers.ndim != 1 or (len(numbers) != 1 and model.use.read_scores is None):
        raise invalid_set(f"{ready.package.name} gives {list(numbers.shape)} for a pair and should give one score")
    return np.array([model.score(ready, row)], np.float32)


def _is_near(model: PackageModel, wanted: Float32, found: Float32) -> bool:
    if model.use.rerank:
        return bool(abs(float(wanted[0]) - float(found[0])) <= _MOST_APART * max(1.0, abs(float(wanted[0]))))
    left, right = wanted.astype(np.float64), found.astype(np.float64)
    return bool(left @ right >= _LEAST_COSINE * np.linalg.norm(left) * np.linalg.norm(right))
