"""The probe of a lane that generates: its greedy tokens beside the reference's, every one of them.

Text admits no tolerance: one token that differs makes another text of all that follows (wire contract, decode lane
certification). The reference is computed on the spot, in float32, after the probe's own prompts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from synapse_host.certification.probe_rows import probe_rows
from synapse_host.certification.probe_setting import ProbeSetting, on_reference
from synapse_host.certification.worker_runs import texts_of
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.lane import Lane

#: Prompts, and tokens generated after each.
PROMPTS = 20
MADE = 64
#: Longer prompts would cost the reference more than they could show: every token made reads all that came before.
LONGEST_PROMPT = 96
SINGLE_SAMPLES = 20
#: Fewer tokens than this, all prompts together, show nothing: the model ends its texts at once.
LEAST_TOKENS = 256


class TextSubject:
    """One generating lane under measurement."""

    def __init__(self, lane: Lane, setting: ProbeSetting) -> None:
        self.rows = _prompts(lane)
        self._lane = lane
        self._setting = setting
        self._reference: list[list[int]]
        self._made: list[list[int]] = []
        self._seconds: list[float] = []

    async def run_reference(self) -> None:
        model = on_reference(self._lane.model)
        self._reference = await texts_of(self._setting.start_worker, model, self.rows, MADE, self._setting.count)

    async def run_lane(self) -> None:
        for row in self.rows:
            began = time.perf_counter()
            text = await self._lane.generate(row, MADE)
            self._seconds.append(time.perf_counter() - began)
            self._made.append(list(text.generated_token_ids or []))
            self._setting.count(len(self._made), len(self.rows))

    async def run_magnified(self) -> None:
        """Nothing is left to magnify where every token must be the same."""

    async def speed(self) -> tuple[float, float]:
        """Median tokens a second of one text at a time, and median milliseconds until the first token."""
        rates = [len(ids) / seconds for ids, seconds in zip(self._made, self._seconds, strict=True)]
        short = min(self.rows, key=len)
        samples = []
        for _ in range(SINGLE_SAMPLES):
            began = time.perf_counter()
            await self._lane.generate(short, 1)
            samples.append((time.perf_counter() - began) * 1000)
        return statistics.median(rates), statistics.median(samples)

    def judged(self) -> tuple[list[str], dict[str, Any]]:
        evidence: dict[str, Any] = {
            "text": {"prompts": len(self.rows), "tokens": sum(map(len, self._reference)), "tokens_per_prompt": MADE}
        }
        found = first_divergence(self._reference, self._made)
        if found is None:
            enough = evidence["text"]["tokens"] >= LEAST_TOKENS
            return [] if enough else ["fixture_unavailable"], evidence
        prompt, position = found
        evidence["first_divergence"] = {
            "prompt": self._lane.tokenizer.continuation([], self.rows[prompt]),
            "prompt_token_ids": self.rows[prompt],
            "position": position,
            "expected_token_ids": self._reference[prompt],
            "actual_token_ids": self._made[prompt],
        }
        return ["token_mismatch"], evidence


def first_divergence(expected: Sequence[Sequence[int]], actual: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Prompt and position of the first token that differs, an end too early or too late included; None without one."""
    for prompt, (wanted, made) in enumerate(zip(expected, actual, strict=True)):
        for position, (one, other) in enumerate(zip_longest(wanted, made)):
            if one != other:
                return prompt, position
    return None


def _prompts(lane: Lane) -> list[list[int]]:
    """The probe's first prompts that leave room for what is generated.

    Raises:
        InvalidRequest: the model was loaded with too little context for any.

    """
    room = min(LONGEST_PROMPT, lane.model.max_tokens - MADE)
    rows = [row for row in probe_rows(lane.tokenizer, lane.model.max_tokens) if 0 < len(row) <= room][:PROMPTS]
    if not rows:
        raise InvalidRequest(
            f"model {lane.model.model_id!r} was loaded with max_tokens {lane.model.max_tokens}; its probe generates "
            f"{MADE} tokens after short prompts, so load it with at least {MADE + LONGEST_PROMPT}",
            details={"model_id": lane.model.model_id, "max_tokens": lane.model.max_tokens},
        )
    return rows
