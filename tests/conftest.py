"""Fixtures and settings every folder of tests may use."""

from __future__ import annotations

import pytest
from hypothesis import settings

# An example that takes longer because other tests run beside it is no fault.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
