"""The probe of a lane that embeds: its vectors beside the reference's."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from synapse_host.certification import gates, metrics
from synapse_host.certification.lane_rows import lane_vectors
from synapse_host.certification.performance import speed_of
from synapse_host.certification.probe_rows import probe_rows
from synapse_host.certification.probe_setting import ProbeSetting, magnifier_for, on_reference
from synapse_host.certification.worker_runs import vectors_of
from synapse_host.lanes.lane import Lane


class VectorSubject:
    """One embedding lane under measurement."""

    def __init__(self, lane: Lane, setting: ProbeSetting) -> None:
        self.rows = probe_rows(lane.tokenizer, lane.model.max_tokens)
        self._lane = lane
        self._setting = setting
        self._reference: metrics.Vectors
        self._texts: metrics.Agreement
        self._magnified: metrics.Agreement | None = None

    async def run_reference(self) -> None:
        model = on_reference(self._lane.model)
        self._reference = await vectors_of(
            self._setting.start_worker, model, self.rows, threads=0, count=self._setting.count
        )

    async def run_lane(self) -> None:
        dims, raw = await lane_vectors(self._lane, self.rows, self._setting.count)
        vectors = np.frombuffer(raw, "<f4").reshape(len(self.rows), dims)
        self._texts = metrics.agreement(vectors, self._reference)

    async def run_magnified(self) -> None:
        start, threads = self._setting.start_worker, self._setting.threads
        with magnifier_for(self._lane.model) as (model, magnifier):
            tiny = replace(model, normalize=True)
            lane = await vectors_of(start, tiny, magnifier.rows, threads=threads)
            reference = await vectors_of(start, on_reference(tiny), magnifier.rows, threads=0)
        self._magnified = metrics.agreement(lane, reference)

    async def speed(self) -> tuple[float, float]:
        return await speed_of(self._lane, self.rows, self._setting.count)

    def judged(self) -> tuple[list[str], dict[str, Any]]:
        dtype = self._lane.model.dtype
        missed = gates.failures(dtype, self._setting.gates, self._texts, self._magnified)
        floors = {**asdict(self._setting.gates), **asdict(gates.FLOORS[dtype]), "dtype": dtype}
        evidence = {"texts": asdict(self._texts), "floors": floors}
        return missed, evidence | ({} if self._magnified is None else {"magnifying_model": asdict(self._magnified)})
