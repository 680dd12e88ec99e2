from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.testing.minilm import minilm_directory
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.tiny_models import TinyBert, write_model

#: Small enough to certify in a second; positions past the inline defaults do not matter to it.
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT checkpoint with its tokenizer."""
    directory = tmp_path_factory.mktemp("tiny") / "tiny-bert"
    directory.mkdir()
    write_model(directory, TINY, "f32")
    return directory


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path) -> Callable[[Path], Path]:
    """Makes homes whose store holds the tiny model on the reference as ``tiny``, certified: a copy costs no probe.

    Certification belongs to the fingerprint, so the same files under another id are certified there too.
    """
    origin = tmp_path_factory.mktemp("certified")
    with RunningHost(origin) as running, running.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id="tiny")

    def make(home: Path) -> Path:
        shutil.copytree(origin, home, dirs_exist_ok=True)
        return home

    return make


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    """One host for all tests that leave it as they found it: MiniLM on the cpu lane as ``minilm`` (the default
    precision) and ``minilm-f32``, both certified."""
    with RunningHost(tmp_path_factory.mktemp("home")) as running:
        with running.client() as client:
            load_model(client, minilm_directory(), engine="cpu", model_id="minilm")
            load_model(client, minilm_directory(), engine="cpu", model_id="minilm-f32", dtype="f32")
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    """A new connection to the shared host."""
    with host.client() as connected:
        yield connected
