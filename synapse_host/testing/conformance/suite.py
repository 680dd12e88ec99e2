"""The whole conformance suite as one class to subclass.

A third-party backend's own tests::

    from synapse_host.testing.conformance.suite import ConformanceSuite


    class TestMyBackend(ConformanceSuite):
        backend = "my-backend"

The fixture ``conformance_bench`` comes from the pytest plugin of this package, which pytest finds by itself.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from synapse_host.hookspecs import BackendSettings, DType
from synapse_host.testing.conformance.describing import Describing
from synapse_host.testing.conformance.embedding import Embedding
from synapse_host.testing.conformance.endings import Endings
from synapse_host.testing.conformance.life_cycle import LifeCycle
from synapse_host.testing.conformance.memory import Memory
from synapse_host.testing.conformance.progress import Progress
from synapse_host.testing.conformance.reference import Reference
from synapse_host.testing.conformance.refusals import Refusals
from synapse_host.testing.conformance.reranking import Reranking
from synapse_host.testing.conformance.subject import Subject


# pytest runs the tests of the last base first.
class ConformanceSuite(Memory, Endings, Reference, Reranking, Progress, Refusals, Embedding, LifeCycle, Describing):
    """Every test. ``backend`` is the entry point's name; the rest is as in ``Subject``."""

    backend: ClassVar[str] = ""
    model: ClassVar[Path | None] = None
    dtype: ClassVar[DType | None] = None
    settings: ClassVar[BackendSettings] = MappingProxyType({})

    @classmethod
    def subject(cls) -> Subject:
        """What is under test; raises ``ValueError`` when the class names no backend."""
        if not cls.backend:
            raise ValueError(f"{cls.__name__}.backend is empty; set it to the name of the backend's entry point")
        return Subject(cls.backend, cls.model, cls.dtype, cls.settings)
