"""A model whose weights overflow for one token: a typed error that names the item, asked for once, and no strike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed
from synapse_host.testing.models.tiny_models import TinyBert, tiny_tokenizer, write_model, write_safetensors
from synapse_host.testing.running_host import RunningHost, load_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=400, positions=64)
#: A token no text of the probe has, and a number that float32 holds: bfloat16 rounds it to infinity, and in float32 the
#: sum of a row of it is one.
TOKEN, LARGE = "ee", 3.4e38


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("model") / "overflowing"
    write_model(directory, TINY)
    tensors = TINY.tensors()
    tensors["embeddings.word_embeddings.weight"][tiny_tokenizer(TINY.vocab)["model"]["vocab"][TOKEN]] = LARGE
    write_safetensors(directory / "model.safetensors", tensors, "f32")
    with RunningHost(tmp_path_factory.mktemp("home")) as running, running.client() as connected:
        load_model(connected, directory, engine="cpu", model_id="overflowing")
        yield connected


def test_the_item_is_named_and_nothing_invites_to_ask_again(client: Client) -> None:
    with pytest.raises(EngineCrashed) as one:
        client.embed_query("overflowing", TOKEN, id="mine", retries=5)
    with pytest.raises(EngineCrashed) as several:
        client.embed_batch("overflowing", [("first", "t"), ("second", f"a {TOKEN} n"), ("third", "s")], retries=5)
    for refused, item in ((one.value, "mine"), (several.value, "second")):
        assert (refused.error_class, refused.safe_to_retry, refused.retry_after_ms) == ("permanent", False, None)
        assert refused.details is not None
        assert (refused.details["reason"], refused.details["item_id"]) == ("non_finite_output", item)
        assert item in refused.message


def test_it_is_no_strike_and_other_texts_are_served_on(client: Client) -> None:
    for _ in range(3):
        with pytest.raises(EngineCrashed):
            client.embed_query("overflowing", TOKEN)
    assert np.isfinite(client.embed_query("overflowing", "t n").vectors).all()
