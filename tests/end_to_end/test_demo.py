"""The demonstration, run as ``make demo`` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.testing.command_runs import environment_of
from synapse_host.testing.running_host import python_path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run_demo(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO)],
        cwd=tmp_path,
        env=environment_of(tmp_path / "never-used", settings),
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demonstration_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^   0\.\d{3}  (?:README\.md|docs/\S+\.md):\d+$", done.stdout, flags=re.MULTILINE)) == 6
    assert "docs/how-to/embed-many-texts.md:" in done.stdout
    assert "docs/explanation/numeric-identity.md:" in done.stdout
    assert re.search(r"[\d,]+ tokens per second", done.stdout)
    fingerprints = set(re.findall(r"fingerprint +([0-9a-f]{64})", done.stdout))
    assert len(fingerprints) == 1
    assert "stopped with status 0" in done.stdout
    assert len(done.stdout.splitlines()) <= 45
    (home,) = re.findall(r"below (/tmp/\S+)", done.stdout)
    assert not Path(home).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_does_not_start_fails_the_demonstration(tmp_path: Path) -> None:
    done = run_demo(tmp_path, SYNAPSE_LOG_LEVEL="loud")
    assert done.returncode == 1
    assert done.stderr.startswith("the demonstration failed: the host did not start:\n")
    assert "SYNAPSE_LOG_LEVEL" in done.stderr
    assert "Traceback" not in done.stderr


#: What the demonstration hears of its probe; that probes fail is shown elsewhere, and this one takes long.
NOT_CERTIFIED = """
import sys

if sys.orig_argv[-1].endswith("demo.py"):
    from synapse_host.client.blocking_client import Client

    lane = {"certified": False, "blocking_reason": "mean cosine is 0.5, below 1.0"}
    Client.wait_for_probe = lambda self, job_id: {"lanes": [lane]}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_that_is_not_certified_fails_the_demonstration(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOT_CERTIFIED)
    done = run_demo(tmp_path, **python_path(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("the demonstration failed: minilm was not certified: mean cosine is ")
