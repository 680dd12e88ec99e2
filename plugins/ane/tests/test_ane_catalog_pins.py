"""The catalog expects the engine of this plugin as it is now, or no catalog lane on it could load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "refresh_catalog_engines.py"


def test_the_catalog_expects_this_engine() -> None:
    command = [sys.executable, SCRIPT, "--check", "ane"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}\nrun: python scripts/refresh_catalog_engines.py"
