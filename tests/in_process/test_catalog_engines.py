"""The engines the shipped catalog expects are those of this checkout's plugins, or no lane of it could ever load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "refresh_catalog_engines.py"


def test_the_document_expects_the_engines_of_this_checkout() -> None:
    run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}\nrun: python scripts/refresh_catalog_engines.py"
