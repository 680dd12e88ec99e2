from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.shared_making import copies, made_once

#: Small enough to certify in a second; positions past the inline defaults do not matter to it.
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT checkpoint with its tokenizer, at one place for all processes: certified homes name it."""
    return made_once(tmp_path_factory, "tiny-bert", lambda folder: write_model(folder, TINY, "f32"))


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path) -> Callable[[Path], Path]:
    """Makes homes whose store holds the tiny model on the reference as ``tiny``, certified: a copy costs no probe.

    Certification belongs to the fingerprint, so the same files under another id are certified there too.
    """

    def make_certified(home: Path) -> None:
        with RunningHost(home) as running, running.client() as client:
            load_model(client, tiny_directory, engine="reference", model_id="tiny")

    return copies(made_once(tmp_path_factory, "certified", make_certified))


@pytest.fixture(scope="session")
def with_minilm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Makes homes with MiniLM on the cpu lane as ``minilm`` (the default precision) and ``minilm-f32``, certified."""

    def make_certified(home: Path) -> None:
        with RunningHost(home) as running, running.client() as client:
            load_model(client, minilm_directory(), engine="cpu", model_id="minilm")
            load_model(client, minilm_directory(), engine="cpu", model_id="minilm-f32", dtype="f32")

    return copies(made_once(tmp_path_factory, "minilm", make_certified))


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory, with_minilm: Callable[[Path], Path]) -> Iterator[RunningHost]:
    """One host with the models of ``with_minilm``, for all tests that leave it as they found it."""
    with RunningHost(with_minilm(tmp_path_factory.mktemp("home"))) as running:
        with running.client() as client:
            # A load may take longer than a request waits for it where much else is done.
            for model in ("minilm", "minilm-f32"):
                client.embed_query(model, "loaded", retries=20)
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    """A new connection to the shared host."""
    with host.client() as connected:
        yield connected
