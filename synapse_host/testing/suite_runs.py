"""Runs pytest in a process of its own, as an author of a backend does, and reads what became of each test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from synapse_host.testing.running_host import python_path

#: Seconds a whole run may take on a busy machine.
RUN_DEADLINE_S = 110
#: A line of pytest's summary: outcome, node, and the message after it.
_LINE = re.compile(r"^(PASSED|FAILED|ERROR) (\S+?::)*(?P<test>test_\w+(\[[^\]]*\])?)", re.MULTILINE)
#: Plugins of this project's own environment that the run does without; they cost time at each start.
_LEFT_OUT = ("-p", "no:anyio", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """How a run ended: pytest's exit status, names of tests without file and class, and all it printed."""

    status: int
    passed: list[str]
    failed: list[str]
    output: str


def run_suite(*arguments: str, folder: Path, site: Path | None = None) -> SuiteRun:
    """Run ``pytest`` with ``arguments`` in ``folder``; distributions in ``site`` count as installed."""
    command = [sys.executable, "-P", "-m", "pytest", *_LEFT_OUT, "-q", "-rpfsE", "--tb=short", *arguments]
    environment = {**os.environ, "COLUMNS": "400"} | (python_path(site) if site else {})
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_DEADLINE_S, check=False
    )
    found = [(match[1], match["test"]) for match in _LINE.finditer(done.stdout)]
    return SuiteRun(
        done.returncode,
        [test for outcome, test in found if outcome == "PASSED"],
        [test for outcome, test in found if outcome != "PASSED"],
        done.stdout + done.stderr,
    )
