"""What is under test: a backend by name, the model to run it with, and the activation type."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synapse_host.hookspecs import BackendSettings, DType


@dataclass(frozen=True, slots=True)
class Subject:
    """``backend`` is the entry point's name.

    ``model`` is a directory as ``model_files.model_in`` reads it; None makes a tiny model from a seed. ``dtype`` None
    is the first that the backend declares. ``settings`` are what an operator would have set for the backend.
    """

    backend: str
    model: Path | None = None
    dtype: DType | None = None
    settings: BackendSettings = field(default_factory=dict)
