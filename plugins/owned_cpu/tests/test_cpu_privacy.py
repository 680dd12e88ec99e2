"""The runtime reports to nobody: no connection is attempted and nothing is written into the user's home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.testing.models.minilm import minilm_directory

#: Every road out of the process, trapped. The log is a file because the telemetry package sends from a forked child.
TRAPPED = """
import socket, sys
def trap(name):
    def refuse(*arguments, **options):
        with open(sys.argv[1], "a") as log:
            log.write(name + "\\n")
        raise OSError(name + " is trapped")
    return refuse
for owner, name in ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket.socket, "sendto"),
                    (socket, "getaddrinfo"), (socket, "create_connection"), (socket, "gethostbyname")):
    setattr(owner, name, trap(name))
"""
EMBED = """
import runpy
sys.argv = ["engine_runs", "synapse_owned_cpu.plugin", sys.argv[2], "f32", "1"]
runpy.run_module("synapse_host.testing.engine_runs", run_name="__main__")
assert "openvino" in sys.modules and "openvino_telemetry" not in sys.modules
"""
#: Variables by which the telemetry package knows an automated build, where it keeps quiet of its own accord.
BUILD_MARKS = ("CI", "TF_BUILD", "JENKINS_URL")
#: Runs a program without any network device, where the system allows it.
NO_NETWORK = ["unshare", "--net", "--map-root-user"]


def cut_off() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0


needs_unshare = pytest.mark.skipif(not cut_off(), reason="this system does not let us make a network namespace")


def attempts(tmp_path: Path, program: str, *, prefix: list[str] | None = None) -> tuple[list[str], list[str]]:
    """What the program tried to reach, and what it left in its home."""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    command = [*(prefix or []), sys.executable, "-c", TRAPPED + program, str(log), str(minilm_directory())]
    # A user's machine carries none of the marks, so the checks hold without them too.
    environment = {name: value for name, value in os.environ.items() if name not in BUILD_MARKS} | {"HOME": str(home)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    tried = log.read_text().splitlines() if log.exists() else []
    return tried, sorted(path.name for path in home.rglob("*"))


def test_no_connection_is_attempted_by_import_and_inference(tmp_path: Path) -> None:
    assert attempts(tmp_path, EMBED) == ([], [])


@needs_unshare
def test_import_and_inference_work_without_a_network(tmp_path: Path) -> None:
    assert attempts(tmp_path, EMBED, prefix=NO_NETWORK) == ([], [])


@needs_unshare
def test_the_trap_sees_what_the_runtime_does_unblocked(tmp_path: Path) -> None:
    """The checks above can fail: without the block, an import alone leaves a client id or a connection attempt."""
    tried, left = attempts(tmp_path, "import openvino", prefix=NO_NETWORK)
    assert tried or left


def test_the_block_comes_too_late_after_the_package_and_says_so() -> None:
    program = (
        "import sys, types; sys.modules['openvino_telemetry'] = types.ModuleType('openvino_telemetry')\n"
        "from synapse_owned_cpu.telemetry import block_telemetry\n"
        "try: block_telemetry()\n"
        "except RuntimeError as late: print(late)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert "already imported; start a fresh process" in ran.stdout
