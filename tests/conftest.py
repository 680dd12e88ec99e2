"""Fixtures and settings every folder of tests may use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# An example that takes longer, or is longer in the making, because other tests run beside it is no fault.
CURRENT = settings.get_profile(settings.get_current_profile_name())
UNHURRIED = {*CURRENT.suppress_health_check, HealthCheck.too_slow}
settings.register_profile("untimed", CURRENT, deadline=None, suppress_health_check=tuple(UNHURRIED))
settings.load_profile("untimed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def hardware_of_the_tests() -> Iterator[None]:
    """Locks of hardware are a user's, not a host's: hosts that tests start keep off those of who runs them."""
    with tempfile.TemporaryDirectory(prefix="synapse-hardware-") as folder, pytest.MonkeyPatch.context() as patched:
        patched.setitem(os.environ, "SYNAPSE_TEST_HARDWARE_DIR", folder)
        yield
