"""Real MiniLM on the Vulkan backend: close to transformers, the same bits anywhere, and nothing redone per request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import plugin
from synapse_vulkan.opening import open_runtime
from synapse_vulkan.pace import Pace
from synapse_vulkan.product import VARIANTS, Products, Variant

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import TinyBert, write_model

pytestmark = pytest.mark.usefixtures("vulkan_device")
FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
ALLOWED = {"allow_software_device": "true"}
VOCAB = 30_522
#: Smallest cosine to transformers in float32, as the plugin's manifest states it.
FLOOR = 0.999999
TINY = TinyBert(seed=5, hidden=48, layers=2, heads=4, intermediate=96, vocab=VOCAB, positions=512)
LENGTHS = (1, 15, 16, 17, 33, 64, 65, 127, 129)


@pytest.fixture(scope="module")
def minilm() -> Iterator[Any]:
    with loaded_model(plugin, minilm_directory(), settings=ALLOWED) as model:
        yield model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, TINY)
    return folder


def embed(model: Any, rows: list[Any]) -> Any:
    return plugin.synapse_embed(model, batch_of(rows), ignore_progress)


def digests(model: Any, rows: list[Any]) -> list[str]:
    return [vector_digest(vector) for vector in embed(model, rows)]


@cache
def recorded() -> tuple[list[Any], Any]:
    """Rows of token ids, and the vectors transformers gave them."""
    with np.load(FIXTURES / "minilm_reference.npz") as fixture:
        rows = np.split(fixture["ids"].astype(np.int32), np.cumsum(fixture["lengths"])[:-1])
        return rows, fixture["vectors"].astype(np.float64)


def cosines(found: Any, wanted: Any) -> Any:
    return np.sum(found * wanted, axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)


def test_vectors_agree_with_transformers(minilm: Any) -> None:
    rows, wanted = recorded()
    short = [place for place, row in enumerate(rows) if len(row) <= 160]
    assert len(short) >= 40
    assert cosines(embed(minilm, [rows[place] for place in short]), wanted[short]).min() >= FLOOR


def test_bits_are_the_same_in_any_batch_at_any_position(minilm: Any) -> None:
    random = np.random.default_rng(1)
    lengths = [int(length) for length in random.choice(LENGTHS, 14)]
    others = [random.integers(0, VOCAB, int(length)).astype(np.int32) for length in random.integers(1, 130, 10)]
    rows = [*seeded_rows(lengths, VOCAB), *others]
    order = random.permutation(len(rows))
    alone = {length: digests(minilm, seeded_rows([length], VOCAB))[0] for length in set(lengths)}
    found = dict(zip(order.tolist(), digests(minilm, [rows[place] for place in order]), strict=True))
    assert [found[place] for place in range(len(lengths))] == [alone[length] for length in lengths]


def test_bits_are_the_same_in_another_process_with_other_threads(tiny: Path) -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-m", "synapse_host.testing.engine_runs", "synapse_vulkan.plugin", str(tiny), "f32", seed]
            + [f"{key}={value}" for key, value in ALLOWED.items()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "LP_NUM_THREADS": threads},
        )
        for seed, threads in (("1", "1"), ("2", "3"))
    ]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == second
    assert len(first) > 30


@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda variant: variant.name)
def test_every_variant_of_the_product_gives_the_same_bits(
    variant: Variant, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = seeded_rows([3, 40, 70], VOCAB)
    found = []
    for each in (VARIANTS[0], variant):
        monkeypatch.setattr(open_runtime(), "products", Products.only(each))
        with loaded_model(plugin, tiny, settings=ALLOWED) as model:
            found.append(digests(model, rows))
    assert found[0] == found[1]


class CountingLibrary:
    """The loader's functions, every call of them counted by name."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._library, name)


def test_a_replayed_forward_touches_no_dispatch(minilm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = seeded_rows([20, 25], VOCAB)
    # Whatever else the machine does: a slow submission would have its recording made anew.
    monkeypatch.setattr(Pace, "learn", lambda *arguments: False)
    embed(minilm, rows)
    device = open_runtime().device
    counted = CountingLibrary(device.lib)
    monkeypatch.setattr(device, "lib", counted)
    embed(minilm, rows)
    waits = counted.calls.count("vkWaitForFences")
    submissions = counted.calls.count("vkQueueSubmit")
    assert 1 <= submissions <= 64
    assert counted.calls.count("vkResetFences") == submissions
    # Nothing but submitting and waiting, however many dispatches a forward has.
    assert len(counted.calls) == 2 * submissions + waits
