"""One probe of one embedding lane: run it beside the reference, judge the agreement, measure its speed.

The lane runs the probe's rows as it would serve them, in mixed batches through its own queue. The reference runs them
in a worker of its own, in float32. A second, tiny model magnifies mistakes a trained model would hide.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from synapse_host.certification import gates, metrics, performance
from synapse_host.certification.ledger import Certification, Performance
from synapse_host.certification.magnifying_model import HIDDEN, POSITIONS, VOCAB, write_magnifying_model
from synapse_host.certification.probe_rows import probe_rows
from synapse_host.certification.worker_runs import StartWorker, vectors_of
from synapse_host.errors import EngineCrashed, StoreFailure
from synapse_host.identity.digests import sha256_file
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.registered_model import RegisteredModel

REFERENCE_BACKEND = "reference"
#: A row of about this many tokens stands for a short query in the latency figure.
SHORT_ROW = 12
#: What an engine can do wrong that is a measurement: output that is no vector. An engine that crashed measured nothing.
_WRONG_OUTPUT = frozenset({"non_finite_output", "zero_output"})


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeSetting:
    """What a probe needs from its host."""

    start_worker: StartWorker
    gates: gates.Gates
    threads: int
    os_build: str
    module_generation: int
    now_ms: Callable[[], int]


async def probe_lane(
    lane: Lane, profile_hash: str, setting: ProbeSetting, tell: Callable[[str], None]
) -> tuple[Certification, Performance | None]:
    """Measure ``lane`` and judge it; ``tell`` hears the name of each step.

    A lane whose engine computed something that is no vector is uncertified with that as its reason.

    Raises:
        SynapseError: the reference or the lane cannot run to the end; that says nothing of its numbers.
        StoreFailure: the magnifying model cannot be written.

    """
    tell("loading")
    await lane.load()
    model = lane.model
    rows = probe_rows(lane.tokenizer, model.max_tokens)
    tell("reference")
    reference = await vectors_of(setting.start_worker, _on_reference(model), rows, threads=0)
    # The lane's worker may have been killed meanwhile, by the system for its memory say: no fault of its numbers.
    await lane.load()
    try:
        tell("lane")
        texts = metrics.agreement(await _lane_vectors(lane, rows), reference)
        tell("magnifying model")
        magnified = await _magnified(model, setting)
        speed = None
        missed = gates.failures(model.dtype, setting.gates, texts, magnified)
        evidence = {"texts": asdict(texts), "magnifying_model": asdict(magnified), "floors": _floors(model, setting)}
        if not missed:
            tell("speed")
            speed = await _speed(lane, rows, profile_hash, setting)
    except EngineCrashed as crash:
        if (crash.details or {}).get("reason") not in _WRONG_OUTPUT:
            raise
        missed, evidence, speed = [crash.message], {"error": crash.to_wire()}, None
    return _outcome(model, profile_hash, missed, evidence, setting), speed


def _outcome(
    model: RegisteredModel, profile_hash: str, missed: list[str], evidence: dict[str, Any], setting: ProbeSetting
) -> Certification:
    return Certification(
        fingerprint=model.fingerprint,
        machine_profile_hash=profile_hash,
        status="uncertified" if missed else "certified",
        reason="; ".join(missed) or None,
        evidence=evidence,
        os_build=setting.os_build,
        module_generation=setting.module_generation,
        measured_at_ms=setting.now_ms(),
    )


async def _lane_vectors(lane: Lane, rows: list[list[int]]) -> metrics.Vectors:
    dims, raw = await lane.embed(rows, [str(index) for index in range(len(rows))])
    return np.frombuffer(raw, "<f4").reshape(len(rows), dims)


async def _magnified(model: RegisteredModel, setting: ProbeSetting) -> metrics.Agreement:
    with _temporary_directory() as directory:
        files = write_magnifying_model(directory)
        tiny = dataclasses.replace(
            model,
            model_id=f"{model.model_id}-magnifier",
            family="bert",
            model_path=str(files.model),
            model_sha256=sha256_file(files.model),
            model_size=files.model.stat().st_size,
            config_path=str(files.config),
            config_sha256=sha256_file(files.config),
            max_tokens=POSITIONS,
            vocab_size=VOCAB,
            normalize=True,
        )
        lane = await vectors_of(setting.start_worker, tiny, files.rows, threads=setting.threads)
        reference = await vectors_of(setting.start_worker, _on_reference(tiny), files.rows, threads=0)
    assert reference.shape[1] == HIDDEN
    return metrics.agreement(lane, reference)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="synapse-probe-") as directory:
            yield Path(directory)
    except OSError as error:
        raise StoreFailure(
            f"the probe's own model could not be written: {error}; free space for temporary files and probe again"
        ) from error


def _on_reference(model: RegisteredModel) -> RegisteredModel:
    return dataclasses.replace(
        model,
        model_id=f"{model.model_id}-reference",
        backend=REFERENCE_BACKEND,
        engine=EngineIdentity(REFERENCE_BACKEND, model.engine.version, {}),
        dtype="f32",
        kernel_revision=None,
        manifest_digest=None,
    )


async def _speed(lane: Lane, rows: list[list[int]], profile_hash: str, setting: ProbeSetting) -> Performance:
    short = min(rows, key=lambda row: abs(len(row) - SHORT_ROW))
    return Performance(
        fingerprint=lane.model.fingerprint,
        machine_profile_hash=profile_hash,
        throughput_tok_s=await performance.throughput_tok_s(lane, rows),
        cold_load_ms=float(lane.cold_load_ms or 0),
        single_item_latency_p50_ms=await performance.single_item_p50_ms(lane, short),
        measured_at_ms=setting.now_ms(),
    )


def _floors(model: RegisteredModel, setting: ProbeSetting) -> dict[str, Any]:
    return {**asdict(setting.gates), **asdict(gates.FLOORS[model.dtype]), "dtype": model.dtype}
