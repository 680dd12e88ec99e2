"""The self-check of an owned backend: a mistake in each operation is reported under that operation's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from synapse_host.certification.engine_check import judge_engine
from synapse_host.hookspecs import CheckNumbers
from synapse_host.ops.op_cases import OP_CASES, ReferenceUnderTest
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import OP_NAMES, TensorOps
from synapse_host.ops.weight_source import WeightSource
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.family_table import FAMILIES, family_named
from synapse_host.owned_engine.self_check import checked_numbers
from synapse_host.testing.engine_runs import ignore_progress

RERANKING = {name for name, family in FAMILIES.items() if family.score is not None}
SETTINGS = ModelSettings(family_named("bert"), {}, "f32", 128, 1)


def numbers(subject: ReferenceUnderTest, new_engine: Any = reference_plugin._engine) -> list[CheckNumbers]:
    return checked_numbers(subject, new_engine, SETTINGS, ignore_progress)


@pytest.fixture(scope="module")
def reference() -> list[CheckNumbers]:
    return numbers(ReferenceUnderTest())


def test_every_operation_and_family_is_computed_and_progress_grows(reference: list[CheckNumbers]) -> None:
    seen: list[int] = []
    again = checked_numbers(
        ReferenceUnderTest(), reference_plugin._engine, SETTINGS, lambda done, phase, ids=(): seen.append(done)
    )
    assert seen == sorted(set(seen))
    assert len(seen) == len(OP_CASES) + len(FAMILIES)
    assert {check.subject for check in reference if check.kind == "operation"} == set(OP_NAMES)
    assert {check.subject for check in reference if check.kind == "vectors"} == set(FAMILIES)
    assert {check.subject for check in reference if check.kind == "scores"} == RERANKING
    assert len({(check.kind, check.subject, check.label) for check in reference}) == len(reference)
    for one, other in zip(reference, again, strict=True):
        assert one.values.tobytes() == other.values.tobytes()
        assert (one.scale, one.fault) == (other.scale, "")


class OneWrong(ReferenceUnderTest):
    """The reference with one operation a little off, or raising."""

    def __init__(self, op: str, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self._op, self._change = op, change

    def make(self, weights: WeightSource, *, max_tokens: int) -> TensorOps:
        ops = ReferenceOps(weights, max_tokens=max_tokens)
        sound = getattr(ops, self._op)
        setattr(ops, self._op, lambda *args, **how: self._change(sound(*args, **how)))
        return ops


def nudged(made: Any) -> Any:
    """One value of the (last) result is off by a fifth of the largest, and 0.2."""
    last = np.array(made[-1] if isinstance(made, tuple) else made)
    last.flat[last.size // 2] += 1 if last.dtype == np.int32 else 0.2 + 0.2 * float(np.abs(last).max())
    return (*made[:-1], last) if isinstance(made, tuple) else last


def moved(made: Any) -> Any:
    """Every value is off: a table of angles is not looked at everywhere."""
    return np.array(made) + np.float32(0.5)


def broken(made: Any) -> Any:
    raise RuntimeError("no kernel for this shape")


@pytest.fixture(scope="module")
def families(reference: list[CheckNumbers]) -> list[CheckNumbers]:
    return [check for check in reference if check.kind != "operation"]


@pytest.mark.parametrize("change", [nudged, broken])
@pytest.mark.parametrize("op", OP_NAMES)
def test_a_planted_fault_is_reported_first_under_the_name_of_its_operation(
    op: str,
    change: Callable[[Any], Any],
    reference: list[CheckNumbers],
    families: list[CheckNumbers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("synapse_host.owned_engine.self_check.MAGNIFIED", ())
    wrong = moved if (op, change) == ("rope_table", nudged) else change
    lane = [*numbers(OneWrong(op, wrong)), *families]
    findings = judge_engine(lane, reference, dtype="bf16", family="bert", task="embed")
    named = [line.removeprefix("operation ").split(" (")[0] for line in findings.missed]
    assert op in named, findings.missed[:3]
    # A table shows only in what is rotated by it, so a wrong rotation is the table's first finding too.
    assert named[0] == op or (op, named[0]) == ("rope", "rope_table"), findings.missed[:3]


def test_a_model_that_cannot_be_run_is_a_finding_of_its_family(reference: list[CheckNumbers]) -> None:
    def no_decoders(weights: Any, settings: ModelSettings) -> Any:
        if settings.family.name == "qwen3":
            raise RuntimeError("no causal attention here")
        return reference_plugin._engine(weights, settings)

    lane = numbers(ReferenceUnderTest(), no_decoders)
    for family, count in (("bert", 0), ("qwen3", 1)):
        findings = judge_engine(lane, reference, dtype="f32", family=family, task="embed")
        assert len(findings.missed) == count
        assert len(findings.evidence["failed"]) == 2
        assert "no causal attention" in findings.evidence["failed"][0]
