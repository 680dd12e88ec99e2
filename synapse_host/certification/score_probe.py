"""The probe of a lane that reranks: its scores beside the reference's."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from synapse_host.certification import gates
from synapse_host.certification.lane_rows import lane_scores
from synapse_host.certification.performance import speed_of
from synapse_host.certification.probe_pairs import probe_pairs
from synapse_host.certification.probe_setting import ProbeSetting, magnifier_for, on_reference
from synapse_host.certification.score_metrics import ScoreAgreement, Scores, score_agreement
from synapse_host.certification.worker_runs import scores_of
from synapse_host.lanes.lane import Lane
from synapse_host.tokenization.pair_template import PAIR


class ScoreSubject:
    """One reranking lane under measurement."""

    def __init__(self, lane: Lane, setting: ProbeSetting) -> None:
        pairs = probe_pairs(lane.pairs)
        self.rows = pairs.rows
        self._pools = pairs.pools
        self._lane = lane
        self._setting = setting
        self._reference: Scores
        self._pairs: ScoreAgreement
        self._magnified: ScoreAgreement | None = None

    async def run_reference(self) -> None:
        model = on_reference(self._lane.model)
        self._reference = await scores_of(
            self._setting.start_worker, model, self.rows, threads=0, count=self._setting.count
        )

    async def run_lane(self) -> None:
        raw = await lane_scores(self._lane, self.rows, self._setting.count)
        kind = self._lane.model.pair_template.score
        self._pairs = score_agreement(np.frombuffer(raw, "<f4"), self._reference, kind, self._pools)

    async def run_magnified(self) -> None:
        start, threads = self._setting.start_worker, self._setting.threads
        with magnifier_for(self._lane.model) as (model, magnifier):
            template = json.dumps({"prompt_template": PAIR.with_separator(magnifier.separator).to_json()})
            tiny = replace(model, numeric_profile_json=template)
            lane = await scores_of(start, tiny, magnifier.pairs, threads=threads)
            reference = await scores_of(start, on_reference(tiny), magnifier.pairs, threads=0)
        self._magnified = score_agreement(lane, reference, "logit", [])

    async def speed(self) -> tuple[float, float]:
        return await speed_of(self._lane, self.rows, self._setting.count)

    def judged(self) -> tuple[list[str], dict[str, Any]]:
        dtype = self._lane.model.dtype
        missed = gates.score_failures(dtype, self._pairs, self._magnified)
        floors = {
            "pearson": gates.MIN_PEARSON,
            "kendall_tau": gates.MIN_KENDALL_TAU,
            **asdict(gates.SCORE_LIMITS[dtype]),
            "dtype": dtype,
        }
        evidence = {"pairs": asdict(self._pairs), "floors": floors}
        return missed, evidence | ({} if self._magnified is None else {"magnifying_model": asdict(self._magnified)})
