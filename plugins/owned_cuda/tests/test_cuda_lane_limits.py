"""A memory limit can be made for every family, one without layers included."""

from __future__ import annotations

import pytest
from synapse_owned_cuda import lane_limits
from synapse_owned_cuda.memory_plan import pool_limit

from synapse_host.magnifiers.table import MAGNIFIED, magnifier_of
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.family_table import family_named


@pytest.mark.parametrize("family", MAGNIFIED)
def test_a_call_of_every_family_has_a_size(family: str) -> None:
    model = magnifier_of(family)
    settings = ModelSettings(family_named(family), model.config, "f32", model.max_tokens, 1)
    small, large = (lane_limits._call(settings, 4, budget) for budget in (256, 4096))
    assert 0 < pool_limit(0, small, free=2**36) <= pool_limit(0, large, free=2**36)
