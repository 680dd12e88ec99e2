"""What the probes of all kinds of lanes share: what they get, what they do, and the models they run."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from synapse_host.certification import gates
from synapse_host.certification.magnifying_model import POSITIONS, VOCAB, MagnifyingModel, write_magnifying_model
from synapse_host.certification.worker_runs import StartWorker
from synapse_host.errors import StoreFailure
from synapse_host.identity.digests import sha256_file
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.registered_model import RegisteredModel

REFERENCE_BACKEND = "reference"


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeSetting:
    """What a probe needs from its host."""

    start_worker: StartWorker
    gates: gates.Gates
    threads: int
    os_build: str
    module_generation: int
    now_ms: Callable[[], int]


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
    """The model as the reference computes it, in float32."""
    return dataclasses.replace(
        model,
        model_id=f"{model.model_id}-reference",
        backend=REFERENCE_BACKEND,
        engine=EngineIdentity(REFERENCE_BACKEND, model.engine.version, {}),
        dtype="f32",
        kernel_revision=None,
        manifest_digest=None,
    )


@contextmanager
def magnifier_for(model: RegisteredModel) -> Iterator[tuple[RegisteredModel, MagnifyingModel]]:
    """The magnifying model, computed as ``model`` is; its files last as long as the block.

    Raises:
        StoreFailure: it cannot be written.

    """
    with _temporary_directory() as directory:
        files = write_magnifying_model(directory)
        yield (
            dataclasses.replace(
                model,
                model_id=f"{model.model_id}-magnifier",
                family="bert",
                model_path=str(files.model),
                model_sha256=sha256_file(files.model),
                model_size=files.model.stat().st_size,
                shards=(),
                config_path=str(files.config),
                config_sha256=sha256_file(files.config),
                max_tokens=POSITIONS,
                vocab_size=VOCAB,
            ),
            files,
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
