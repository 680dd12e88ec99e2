"""The Vulkan backend's own check, judged against the reference's; nothing of it stays on the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from synapse_vulkan import plugin
from synapse_vulkan.opening import open_runtime

from synapse_host.certification.engine_check import judge_engine
from synapse_host.hookspecs import DType
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.family_table import FAMILIES, family_named
from synapse_host.testing.engine_runs import ignore_progress

pytestmark = pytest.mark.usefixtures("vulkan_device")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_every_operation_and_every_family_agrees_with_the_reference(dtype: DType) -> None:
    loaded, reference = (
        SimpleNamespace(settings=ModelSettings(family_named("bert"), {}, kind, 128, 1)) for kind in (dtype, "f32")
    )
    wanted = reference_plugin.synapse_self_check(reference, ignore_progress)
    before = open_runtime().device.allocated
    lane = plugin.synapse_self_check(loaded, ignore_progress)
    assert open_runtime().device.allocated == before
    for family in FAMILIES:
        findings = judge_engine(lane, wanted, dtype=dtype, family=family, task="rerank")
        assert findings.missed == []
    assert findings.evidence["failed"] == []
