"""The other side of the library comparison: sentence-transformers with the same weights, in its own process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: The library's own default.
DEFAULT_BATCH = 32
BATCH_SIZES = (4, 8, 16, 32, 64)
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class PeerPass:
    """Texts to embed, so many at a time."""

    texts: list[str]
    batch_size: int


@dataclass(frozen=True, slots=True)
class PeerResult:
    """Seconds of the library's ``encode`` and its vectors."""

    seconds: float
    vectors: npt.NDArray[np.float32]


def make_peer(model_directory: Path) -> Callable[[PeerPass], PeerResult]:
    """Load the model as the library does, in float32 on the CPU.

    Its published limit of 256 tokens is raised to the model's 512, so that both sides do the same work.

    Raises:
        RuntimeError: torch is a CUDA build, whose CPU figures nobody asked for.

    """
    # The files are local; nothing may be asked of a network while time is taken.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import torch
    from sentence_transformers import SentenceTransformer

    if torch.version.cuda is not None:
        raise RuntimeError(f"torch {torch.__version__} is a CUDA build; install the CPU build, as `make bench` does")
    model: Any = SentenceTransformer(str(model_directory), device="cpu")
    model.max_seq_length = MAX_TOKENS

    def encode(job: PeerPass) -> PeerResult:
        started = time.perf_counter()
        vectors = model.encode(job.texts, batch_size=job.batch_size, normalize_embeddings=True, show_progress_bar=False)
        return PeerResult(time.perf_counter() - started, vectors)

    return encode
