from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import EmbedBatch, PluginError
from synapse_host.worker.embedding import embed
from synapse_host.worker.loading import Resident
from synapse_host.worker_protocol.messages import EmbedBatchRequest


class OneHook:
    """A plugin whose every hook is ``answer``; remembers what it was called with."""

    operations = frozenset({"synapse_embed"})

    def __init__(self, answer: Callable[[EmbedBatch], Any]) -> None:
        self.answer = answer
        self.batches: list[EmbedBatch] = []

    def hook(self, name: str) -> Callable[..., Any]:
        return self.call

    def call(self, model: object, batch: EmbedBatch, progress: object) -> Any:
        self.batches.append(batch)
        return self.answer(batch)


def run(plugin: OneHook, rows: int = 2, dims: int = 3) -> memoryview:
    items = [{"id": f"doc {row}", "n_tokens": row + 1} for row in range(rows)]
    request = EmbedBatchRequest("e", "m", "cls", False, items)
    raw = np.arange(sum(range(1, rows + 1)), dtype="<i4").tobytes()
    return embed(plugin, Resident(object(), -1, dims, None), request, raw, lambda *_: None)  # type: ignore[arg-type]


def test_the_hook_gets_ids_counts_and_names() -> None:
    plugin = OneHook(lambda _: np.ones((2, 3), dtype=np.float32))
    run(plugin)
    (batch,) = plugin.batches
    assert batch.ids.dtype == np.int32
    assert batch.ids.tolist() == [0, 1, 2]
    assert (batch.counts, batch.item_ids, batch.pooling, batch.normalize) == ([1, 2], ["doc 0", "doc 1"], "cls", False)


def test_rows_leave_in_order_whatever_their_memory_layout() -> None:
    values = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for layout in (values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]):
        raw = run(OneHook(lambda _, layout=layout: layout))
        assert np.frombuffer(raw, dtype="<f4").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1])
def test_one_bad_component_anywhere_is_found_and_its_item_named(bad: float, row: int) -> None:
    def answer(_: EmbedBatch) -> Any:
        vectors = np.ones((2, 3), dtype=np.float32)
        vectors[row, 2] = bad
        return vectors

    with pytest.raises(PluginError, match=f'item "doc {row}"') as refused:
        run(OneHook(answer))
    assert refused.value.code == "non_finite_output"


def test_values_whose_sum_overflows_are_still_finite() -> None:
    biggest = np.full((2, 3), np.finfo(np.float32).max, dtype=np.float32)
    assert len(run(OneHook(lambda _: biggest))) == 24


def test_a_zero_row_is_found_and_its_item_named() -> None:
    vectors = np.array([[0, 1e-38, 0], [0, -0.0, 0]], dtype=np.float32)
    with pytest.raises(PluginError, match='item "doc 1"') as refused:
        run(OneHook(lambda _: vectors))
    assert refused.value.code == "zero_output"


@pytest.mark.parametrize(
    "answer",
    [None, [[1.0, 2.0, 3.0]] * 2, np.ones((3, 2), np.float32), np.ones(6, np.float32), np.ones((2, 3), np.float16)],
    ids=["nothing", "lists", "transposed", "flat", "half"],
)
def test_anything_but_float32_rows_is_the_plugins_mistake(answer: Any) -> None:
    with pytest.raises(TypeError, match=r"expected is float32 \[2, 3\]"):
        run(OneHook(lambda _: answer))
