from __future__ import annotations

import sys


def pytest_unconfigure() -> None:
    """Close what llama_cpp opens when it is imported and never closes; a worker ends without looking for such files."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if (file := getattr(opened, name, None)) is not None:
            file.close()
