"""The machine profile of the machine the tests run on."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from synapse_host.identity.machine_profile import PROBE_BUDGET_S, ThisMachine, read_machine_profile
from synapse_host.identity.numeric_profile import EngineIdentity

ENGINES = [EngineIdentity("reference", "1"), EngineIdentity("owned-cpu", "1", {"openvino": "2025.3"})]


def test_every_part_is_read_and_the_hash_is_the_same_again() -> None:
    profile = read_machine_profile(ENGINES, os_build_override=None)
    assert profile.arch == platform.machine()
    assert all((profile.os_build, profile.chip_model, profile.ram_class, profile.isa))
    assert [engine.engine for engine in profile.engine_identities] == ["owned-cpu", "reference"]
    assert read_machine_profile(ENGINES[::-1], os_build_override=None).hash == profile.hash
    assert read_machine_profile(ENGINES, os_build_override="other").hash != profile.hash


def test_a_command_that_hangs_is_given_up_within_the_budget() -> None:
    with pytest.raises(subprocess.TimeoutExpired, match=f"timed out after {PROBE_BUDGET_S} seconds"):
        ThisMachine().run(sys.executable, "-c", "import threading; threading.Event().wait()")


def test_a_command_that_fails_or_is_absent_is_an_error_not_an_empty_answer() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        ThisMachine().run(sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(FileNotFoundError):
        ThisMachine().run("no-such-command-here")
