"""Every rule of catalog and downloads switched off in turn: exactly the checks of each may miss it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("script", ["disable_catalog_rules.py", "disable_download_rules.py"])
def test_each_rule_is_shown_by_its_own_checks_and_no_other(script: str) -> None:
    run = subprocess.run([sys.executable, SCRIPTS / script], capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
