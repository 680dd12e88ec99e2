"""An unloaded model is gone when its last user lets go of it, not at some later garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TINY_BERTS, write_model


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_an_unloaded_engine_is_freed_without_a_garbage_collection(tmp_path: Path) -> None:
    model = TINY_BERTS["one_layer"]
    write_model(tmp_path, model)
    with loaded_model(reference_plugin, tmp_path, max_tokens=32) as engine:
        reference_plugin.synapse_embed(engine, batch_of(seeded_rows([3, 17], model.vocab)), ignore_progress)
        freed = weakref.ref(engine)
    del engine
    assert freed() is None
