"""Fixtures and settings every folder of tests may use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# An example that takes longer because other tests run beside it is no fault.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
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
