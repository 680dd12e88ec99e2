"""A fuzzer led by coverage finds no input that ends in anything but a lawful value or the reader's own exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNS, MOST_S = 5_000_000, 900


@pytest.mark.timeout(2 * MOST_S)
def test_no_input_surprises_a_reader(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    command = [sys.executable, "-m", "benchmarks.soak.guided_fuzz", str(tmp_path)]
    done = subprocess.run(
        [*command, f"-runs={RUNS}", f"-max_total_time={MOST_S}", "-max_len=4096", f"-artifact_prefix={tmp_path}/"],
        capture_output=True,
        text=True,
    )
    print(done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-4000:]
