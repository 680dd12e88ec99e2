"""What is under test: a backend by name, the model to run it with, and the activation type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synapse_host.hookspecs import DType


@dataclass(frozen=True, slots=True)
class Subject:
    """``backend`` is the entry point's name.

    ``model`` is a directory as ``model_files.model_in`` reads it; None makes a tiny model from a seed. ``dtype`` None
    is the first that the backend declares.
    """

    backend: str
    model: Path | None = None
    dtype: DType | None = None
