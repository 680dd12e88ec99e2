"""What the tests of one backend share: its description, its models, its running workers, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from synapse_host.backends.backend_row import BackendRow
from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import BackendEntry, list_backends
from synapse_host.hookspecs import BackendDescription, DType, Pooling
from synapse_host.testing.conformance.agreement import Promise
from synapse_host.testing.conformance.driver import Driver, open_driver
from synapse_host.testing.conformance.model_files import (
    ModelUnderTest,
    NoModel,
    model_in,
    seeded_cross_encoder,
    seeded_model,
)
from synapse_host.testing.conformance.sessions import Refused, Scores, Session, TokenIds, Vectors
from synapse_host.testing.conformance.subject import Subject
from synapse_host.worker_protocol.messages import Loaded

#: A fact that other tests build on: a function that fails where the backend does not keep it.
Premise: TypeAlias = "Callable[[Bench], None]"
#: Token ids of a model whose vocabulary is not known are below this.
_SAFE_VOCABULARY = 128


class Served:
    """A worker with the model under test loaded; ``loaded`` is the answer to the latest load."""

    def __init__(self, session: Session, model: ModelUnderTest, dtype: DType) -> None:
        self.session = session
        self._model = model
        self._dtype = dtype
        self.loaded: Loaded = session.load(model, dtype)

    @property
    def model_ref(self) -> str:
        """The model's name in this worker."""
        return self.loaded.model_ref

    def reload(self) -> None:
        """Load the model again; the one before is unloaded where it still is there."""
        with suppress(Refused):
            self.session.unload(self.model_ref)
        self.loaded = self.session.load(self._model, self._dtype)

    def embed(self, rows: Sequence[TokenIds], *, pooling: Pooling = "mean", normalize: bool = True) -> Vectors:
        """One vector a row."""
        return self.session.embed(self.model_ref, rows, pooling=pooling, normalize=normalize)


class Ranker:
    """A worker with the suite's cross-encoder loaded."""

    def __init__(self, session: Session, model: ModelUnderTest, dtype: DType) -> None:
        self.session = session
        self._model_ref = session.load(model, dtype, operation="rerank").model_ref

    def rerank(self, rows: Sequence[TokenIds]) -> Scores:
        """One score a sequence."""
        return self.session.rerank(self._model_ref, rows)


class Bench:
    """One backend under test. What costs time is made when first asked for; made by ``open_bench``."""

    def __init__(self, subject: Subject, folder: Path, driver: Driver) -> None:
        self.subject = subject
        self.folder = folder
        self.driver = driver
        self._known: dict[Premise, BaseException | None] = {}
        self._served: dict[str, Served] = {}
        self._ranker: Ranker | None = None

    # --- what the backend says of itself -----------------------------------------------------------------------

    @cached_property
    def rows(self) -> tuple[BackendRow, BackendRow]:
        """The backend's row as the host makes it, from two children that know nothing of each other."""
        entries = {entry.name: entry for entry in list_backends()}
        entry = entries.get(self.subject.backend)
        if entry is None:
            message = f"no backend {self.subject.backend!r} is installed; there are {', '.join(sorted(entries))}"
            absent = BackendRow(self.subject.backend, runnable=False, reason_detail="not_installed", message=message)
            return absent, absent
        return self._probe(entry, 1), self._probe(entry, 2)

    @property
    def described(self) -> tuple[BackendRow, BackendRow]:
        """The two rows of a backend that says what it is; skips the test when it does not."""
        if any(row.description is None for row in self.rows):
            pytest.skip(f"needs a description: {self.rows[0].message}")
        return self.rows

    @property
    def description(self) -> BackendDescription:
        """The description; skips the test when the backend has none or refuses this machine."""
        row = self.described[0]
        if not row.runnable:
            pytest.skip(f"{self.subject.backend!r} does not run on this machine: {row.message}")
        assert row.description is not None
        return row.description

    @property
    def dtype(self) -> DType:
        """The activation type under test."""
        return self.subject.dtype or self.description.dtypes[0]

    @property
    def promise(self) -> Promise:
        """When two vectors of one row count as the same."""
        return Promise(self.dtype, self.description.batch_invariant)

    # --- models and workers ------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> ModelUnderTest:
        """The model under test; fails when there is none for this backend."""
        try:
            if self.subject.model is not None:
                return model_in(self.subject.model, self.description)
            return seeded_model(self.folder / "model", self.description, seed=1)
        except NoModel as missing:
            raise AssertionError(str(missing)) from missing

    @cached_property
    def other_model(self) -> ModelUnderTest:
        """A second model: of another seed, or the same again where the author named one."""
        if self.subject.model is not None:
            return self.model
        return seeded_model(self.folder / "other-model", self.description, seed=2)

    def shared(self) -> Served:
        """The worker that tests of numbers share: one model, never unloaded, nothing it should refuse."""
        return self._serve("shared")

    def spare(self) -> Served:
        """The worker of the tests that load, unload and provoke; such a test reloads the model in the end."""
        return self._serve("spare")

    def start_served(self, *, backend: str | None = None, noisy: bool = False) -> Served:
        """A worker of its own with the model loaded; the caller stops it."""
        session = self.driver.start(backend=backend, noisy=noisy)
        return Served(session, self.model, self.dtype if backend is None else "f32")

    def ranker(self) -> Ranker:
        """The worker that tests of scores share; skips the test where there is no cross-encoder for the backend."""
        if self._ranker is None or not self._ranker.session.alive:
            self._ranker = self.start_ranker()
        return self._ranker

    def start_ranker(self, *, backend: str | None = None) -> Ranker:
        """A worker of its own with the cross-encoder loaded; the caller stops it."""
        model = self._cross_encoder
        if model is None:
            pytest.skip("the suite has no model for this backend to rerank with, or it does not declare the task")
        return Ranker(self.driver.start(backend=backend), model, self.dtype if backend is None else "f32")

    @cached_property
    def _cross_encoder(self) -> ModelUnderTest | None:
        return seeded_cross_encoder(self.folder / "cross-encoder", self.description)

    def rows_of(self, lengths: Sequence[int], salt: int = 0) -> list[TokenIds]:
        """Rows of seeded token ids, 0 never among them: a row that has it is a test of its own."""
        vocabulary = self.model.vocab_size or _SAFE_VOCABULARY
        return [
            np.random.default_rng((salt, place, length)).integers(1, vocabulary, length).astype(np.int32)
            for place, length in enumerate(lengths)
        ]

    # --- what is known -----------------------------------------------------------------------------------------

    def check(self, premise: Premise) -> None:
        """Fail where ``premise`` does; it is tried once, however many tests ask."""
        if premise not in self._known:
            self._known[premise] = self._try(premise)
        outcome = self._known[premise]
        if outcome is not None:
            raise outcome

    def assume(self, *premises: Premise) -> None:
        """Skip the test when a premise fails: the report then names the first cause alone."""
        for premise in premises:
            try:
                self.check(premise)
            except AssertionError as failure:
                pytest.skip(f"needs {premise.__name__}: {str(failure).partition(chr(10))[0]}")

    def _try(self, premise: Premise) -> BaseException | None:
        try:
            premise(self)
        except (AssertionError, pytest.skip.Exception) as outcome:
            return outcome
        return None

    def _probe(self, entry: BackendEntry, number: int) -> BackendRow:
        async def probe() -> BackendRow:
            cache_dir = self.folder / f"probe-{number}"
            return await probe_backend(entry, cache_dir=cache_dir, settings=self.subject.settings)

        row: BackendRow = self.driver.call(probe)
        return row

    def _serve(self, name: str) -> Served:
        served = self._served.get(name)
        if served is None or not served.session.alive:
            served = self._served[name] = self.start_served()
        return served


@contextmanager
def open_bench(subject: Subject, folder: Path) -> Iterator[Bench]:
    """A bench below ``folder``, which is empty; its workers end with it."""
    with ExitStack() as stack:
        yield Bench(subject, folder, stack.enter_context(open_driver(subject.backend, folder, subject.settings)))
