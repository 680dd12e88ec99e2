"""A loaded model and the backend under it, which is told of each request's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from synapse_host.hookspecs import EmbedBatch, Progress
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_owned_cuda.cuda_backend import CudaBackend
from synapse_owned_cuda.request_steps import RequestSteps

if TYPE_CHECKING:
    from synapse_host.hookspecs import TokenIds, Vectors


class CudaModel:
    """What the plugin's hooks are given back: the shared engine, telling of ``setup`` before the first forward."""

    def __init__(self, engine: OwnedEngine, backend: CudaBackend) -> None:
        self._engine = engine
        self._backend = backend
        self.settings = engine.settings
        self.dims = engine.dims
        self.buckets: Sequence[int] | None = engine.buckets

    def embed(self, batch: EmbedBatch, progress: Progress) -> Vectors:
        """As ``OwnedEngine.embed``."""
        with self._told(progress) as steps:
            return self._engine.embed(batch, steps)

    def rerank(self, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
        """As ``OwnedEngine.rerank``."""
        with self._told(progress) as steps:
            return self._engine.rerank(sequences, steps)

    def unload(self) -> None:
        """Drop the executables and the weights."""
        self._engine.unload()

    @contextmanager
    def _told(self, progress: Progress) -> Iterator[RequestSteps]:
        self._backend.steps = steps = RequestSteps(progress)
        try:
            yield steps
        finally:
            self._backend.steps = None
