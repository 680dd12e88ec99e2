"""What the probes of all kinds of lanes share: what they get, what they do, and the models they run."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from synapse_host.certification import gates
from synapse_host.certification.step_count import Count, uncounted
from synapse_host.certification.worker_runs import StartWorker
from synapse_host.errors import InvalidRequest, StoreFailure
from synapse_host.hookspecs import CheckNumbers
from synapse_host.identity.digests import sha256_file
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.magnifiers.magnifier import VOCAB, Magnifier
from synapse_host.magnifiers.table import MAGNIFIED, magnifier_of
from synapse_host.model_files.compiled_package import MODEL_FORMAT as MLMODELC
from synapse_host.models.model_package import SAFETENSORS
from synapse_host.models.registered_model import CHECKPOINT_SUFFIX, RegisteredModel
from synapse_host.values import value_object

REFERENCE_BACKEND = "reference"


@value_object
class ProbeSetting:
    """What a probe needs from its host; ``reference_checks`` keeps the reference's own check, once it was computed."""

    start_worker: StartWorker
    gates: gates.Gates
    threads: int
    os_build: str
    module_generation: int
    now_ms: Callable[[], int]
    reference_checks: list[CheckNumbers] = dataclasses.field(default_factory=list)
    #: Least share of operations on the Neural Engine of a lane there.
    placement_floor: float = 0.9
    #: Told how far the step at hand is.
    count: Count = uncounted


class Subject(Protocol):
    """One kind of lane under measurement. The steps run in this order."""

    rows: list[list[int]]

    async def run_reference(self) -> None:
        """Compute the rows with the reference."""

    async def run_lane(self) -> None:
        """Compute them with the lane, as it would serve them."""

    async def run_magnified(self) -> None:
        """Compute the magnifying model with both."""

    async def speed(self) -> tuple[float, float]:
        """Tokens a second, and median milliseconds of a short request."""

    def judged(self) -> tuple[list[str], dict[str, Any]]:
        """What was missed, a sentence each, and the evidence."""


def on_reference(model: RegisteredModel) -> RegisteredModel:
    """The model as the reference computes it, in float32; a package set by the checkpoint it was made of.

    Raises:
        InvalidRequest: a package set came without that checkpoint, or without the config.json of it.

    """
    if model.format == MLMODELC:
        model = _checkpoint_of(model)
    return dataclasses.replace(
        model,
        model_id=f"{model.model_id}-reference",
        backend=REFERENCE_BACKEND,
        engine=EngineIdentity(REFERENCE_BACKEND, model.engine.version, {}),
        dtype="f32",
        kernel_revision=None,
        manifest_digest=None,
    )


def _checkpoint_of(model: RegisteredModel) -> RegisteredModel:
    checkpoint = next((file for file in model.shards if file.file.endswith(CHECKPOINT_SUFFIX)), None)
    if checkpoint is None or not model.has_config:
        raise InvalidRequest(
            f"model {model.model_id!r} is a package set without what it was made of, which a probe compares it with; "
            "load it with the checkpoint's safetensors file in files.extra and its config.json in files.config",
            details={"model_id": model.model_id},
        )
    return dataclasses.replace(
        model,
        format=SAFETENSORS,
        model_path=checkpoint.path,
        model_sha256=checkpoint.sha256,
        model_size=checkpoint.size,
        shards=(),
    )


@contextmanager
def magnifier_for(model: RegisteredModel) -> Iterator[tuple[RegisteredModel, Magnifier]]:
    """The magnifying model of the family of ``model``, computed as it is; its files last as long as the block.

    Raises:
        StoreFailure: it cannot be written.

    """
    magnifier = magnifier_of(model.family if model.family in MAGNIFIED else "bert")
    with _temporary_directory() as directory:
        weights, config = directory / "model.safetensors", directory / "config.json"
        weights.write_bytes(magnifier.safetensors())
        config.write_text(json.dumps(magnifier.config, sort_keys=True), encoding="utf-8")
        yield (
            dataclasses.replace(
                model,
                model_id=f"{model.model_id}-magnifier",
                family=magnifier.family,
                model_path=str(weights),
                model_sha256=sha256_file(weights),
                model_size=weights.stat().st_size,
                shards=(),
                config_path=str(config),
                config_sha256=sha256_file(config),
                max_tokens=magnifier.max_tokens,
                vocab_size=VOCAB,
            ),
            magnifier,
        )


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="synapse-probe-") as directory:
            yield Path(directory)
    except OSError as error:
        raise StoreFailure(
            f"the probe's own model could not be written: {error}; free space for temporary files and probe again"
        ) from error
