"""The CPU backend's own check, judged against the reference's: it passes, and with how much room."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest
from synapse_owned_cpu import plugin
from synapse_owned_cpu.evidence import dtypes_of, read_machine

from synapse_host.certification.engine_check import judge_engine
from synapse_host.hookspecs import CheckNumbers, DType
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.family_table import FAMILIES, family_named
from synapse_host.testing.engine_runs import ignore_progress


def checks(backend: object, dtype: DType) -> list[CheckNumbers]:
    settings = ModelSettings(family_named("bert"), {}, dtype, 128, 1)
    hook = backend.synapse_self_check  # type: ignore[attr-defined]
    return list(hook(SimpleNamespace(settings=settings), ignore_progress))


@cache
def reference() -> list[CheckNumbers]:
    return checks(reference_plugin, "f32")


@pytest.mark.parametrize("dtype", dtypes_of(read_machine().isa))
def test_every_operation_and_every_family_agrees_with_the_reference(dtype: DType) -> None:
    lane = checks(plugin, dtype)
    for family in FAMILIES:
        for task in ("embed", "rerank"):
            findings = judge_engine(lane, reference(), dtype=dtype, family=family, task=task)  # type: ignore[arg-type]
            assert findings.missed == []
    assert findings.evidence["failed"] == []
    assert 0 < max(findings.evidence["shares"].values()) < 1
