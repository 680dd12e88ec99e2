"""The same text gives the same bits: alone, in any batch, at any position, from any process, whoever else asks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.testing.running_host import RunningHost

MODELS = ("minilm", "minilm-f32")
WORDS = [
    "the",
    "tide",
    "came",
    "in",
    "over",
    "grey",
    "stones",
    "while",
    "a",
    "small",
    "boat",
    "turned",
    "twice",
    "and",
    "then",
    "lay",
    "still",
    "at",
    "its",
    "rope",
]


def salted_texts(salt: str) -> list[str]:
    """Texts of many lengths around the edges of padded shapes, none of them ever embedded before."""
    draw = random.Random(salt)
    lengths = [1, 2, 5, 11, 12, 13, 27, 28, 29, 60, 61, 62, 124, 125, 126, 200, 252, 253, 254, 300, 400, 508, 509, 600]
    return [f"{salt} " + " ".join(draw.choices(WORDS, k=length)) for length in lengths]


def alone(client: Client, model: str, texts: Sequence[str]) -> np.ndarray:
    return np.concatenate([client.embed_query(model, text).vectors for text in texts])


@pytest.mark.parametrize("model", MODELS)
def test_bits_do_not_depend_on_batch_or_position(client: Client, model: str) -> None:
    texts = salted_texts(f"batch-{model}")
    expected = alone(client, model, texts)
    draw = random.Random(7)
    for size in (2, 7, len(texts)):
        order = draw.sample(range(len(texts)), len(texts))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            got = client.embed_batch(model, [texts[index] for index in chosen]).vectors
            np.testing.assert_array_equal(got, expected[chosen])


@pytest.mark.parametrize("model", MODELS)
def test_bits_do_not_depend_on_copies_in_the_batch(client: Client, model: str) -> None:
    text, other = salted_texts(f"copies-{model}")[9:11]
    expected = alone(client, model, [text])[0]
    for copies in (1, 2, 3, 5, 8, 31):
        got = client.embed_batch(model, [*([text] * copies), other]).vectors
        np.testing.assert_array_equal(got[:copies], np.tile(expected, (copies, 1)))


@pytest.mark.parametrize("model", MODELS)
def test_bits_do_not_depend_on_who_else_is_asking(host: RunningHost, client: Client, model: str) -> None:
    texts = salted_texts(f"crowd-{model}")[::3]
    expected = alone(client, model, texts)
    stop, served = threading.Event(), []

    def crowd() -> None:
        with host.client() as other:
            while not stop.is_set():
                served.append(other.embed_batch(model, salted_texts(f"noise-{len(served)}")[:12]).dims)

    thread = threading.Thread(target=crowd)
    thread.start()
    try:
        while not served:
            alone(client, model, texts[:1])
        np.testing.assert_array_equal(client.embed_many(model, texts).vectors, expected)
        np.testing.assert_array_equal(alone(client, model, texts), expected)
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_bits_do_not_depend_on_the_process(client: Client, with_minilm: Callable[[Path], Path], tmp_path: Path) -> None:
    texts = salted_texts("process")
    expected = {model: alone(client, model, texts) for model in MODELS}
    for number in range(2):
        with RunningHost(with_minilm(tmp_path / f"home-{number}")) as other, other.client() as there:
            for model in MODELS:
                np.testing.assert_array_equal(there.embed_many(model, texts, retries=20).vectors, expected[model])


def test_every_row_asked_for_is_computed_again(client: Client) -> None:
    """No result cache: the worker's count of rows grows by what was asked, however often the same text is."""

    def computed() -> int:
        rows = {row["model_id"]: row for row in client.models_list()["models"]}
        return int(rows["minilm"]["rows_computed"])

    before = computed()
    for _ in range(5):
        client.embed_query("minilm", "the same text")
    client.embed_batch("minilm", ["the same text"] * 7)
    assert computed() - before == 5 + 7
