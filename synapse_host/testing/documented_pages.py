"""The code blocks of a documentation page, run against a host as a reader would run them.

Every ```` ```console ```` block's commands (lines that begin with ``$ ``) and every ```` ```python ```` block of a page
become one shell script, in their order, so that what one sets the next one finds. A command is expected to succeed
unless its line ends in ``# exit status N``. Blocks of other languages are not run, nor are those that quote a file,
after a line ``<!-- from FILE -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from synapse_host.testing.running_host import RunningHost

ROOT = Path(__file__).resolve().parents[2]
#: Seconds one page may take on a busy machine.
PAGE_DEADLINE_S = 240
_BLOCK = re.compile(r"^(<!-- from \S+ -->\n)?```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXPECTED = re.compile(r"# exit status (\d+)$")


@dataclass(frozen=True, slots=True)
class Step:
    """One command or program of a page, and the exit status the page claims for it."""

    source: str
    command: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class PageRun:
    """How the script of a page ended; ``output`` names the step that did not do as claimed."""

    status: int
    output: str


def steps_of(page: str, directory: Path) -> list[Step]:
    """The steps of a page, a path relative to the project; programs are written into ``directory``."""
    steps = []
    for number, (quoted, language, text) in enumerate(_BLOCK.findall((ROOT / page).read_text("utf-8"))):
        if quoted:
            continue
        if language == "python":
            program = directory / f"block_{number}.py"
            program.write_text(text, "utf-8")
            steps.append(Step(text, f"python {shlex.quote(str(program))}"))
        else:
            steps.extend(_commands(text))
    return steps


def run_page(
    page: str, host: RunningHost, directory: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> PageRun:
    """Run every step of a page in ``directory``, where ``docs`` and ``examples`` are this project's.

    ``environment`` is added to that of the steps. Stops at the first surprise.
    """
    for folder in ("docs", "examples"):
        (directory / folder).symlink_to(ROOT / folder)
    script = "\n".join(_checked(step) for step in steps_of(page, directory))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=directory,
        env={**os.environ, **environment, "PATH": path, "SYNAPSE_HOME": str(host.home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PAGE_DEADLINE_S,
    )
    return PageRun(done.returncode, done.stdout + done.stderr)


def _commands(text: str) -> list[Step]:
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            expected = _EXPECTED.search(line)
            found.append(Step(line, line[2:], int(expected[1]) if expected else 0))
    return found


def _checked(step: Step) -> str:
    said = shlex.quote(f"this step was to end with status {step.status} and did not:\n{step.source}")
    return f"{step.command}\n[ $? -eq {step.status} ] || {{ echo {said}; exit 1; }}"
