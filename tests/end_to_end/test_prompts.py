"""Prompts from model.load to the vector: as if they were typed, part of the fingerprint, kept over a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import InvalidRequest
from synapse_host.testing.running_host import RunningHost, load_model

QUERY, DOCUMENT = "query: ", "passage: "
TEXTS = ["a b c", "d e", ""]


@pytest.fixture(scope="module")
def fingerprints() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def host(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_directory: Path,
    certified: Callable[[Path], Path],
    fingerprints: dict[str, str],
) -> Iterator[RunningHost]:
    """The tiny model without prompts as ``plain`` and with them as ``e5``; the host was restarted since."""
    running = RunningHost(certified(tmp_path_factory.mktemp("home"))).start()
    with running.client() as client:
        prompts = {"query": QUERY, "document": DOCUMENT}
        for name, more in (("plain", {"certify": False}), ("e5", {"prompts": prompts})):
            status = load_model(client, tiny_directory, engine="reference", model_id=name, **more)
            fingerprints[name] = status["fingerprint"]
    running.stop()
    with running as started:
        yield started


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


def test_a_text_gets_the_vector_of_prompt_and_text_together(client: Client) -> None:
    for text in TEXTS:
        assert_same(client.embed_query("e5", text).vectors, client.embed_query("plain", QUERY + text).vectors)
        document = client.embed_query("e5", text, input_type="document").vectors
        assert_same(document, client.embed_query("plain", DOCUMENT + text).vectors)
    typed = [DOCUMENT + text for text in TEXTS]
    assert_same(client.embed_batch("e5", TEXTS).vectors, client.embed_batch("plain", typed).vectors)
    queries = client.embed_batch("e5", TEXTS, input_type="query").vectors
    assert_same(queries, client.embed_batch("plain", [QUERY + text for text in TEXTS]).vectors)


def test_a_job_embeds_documents(client: Client) -> None:
    texts = [f"{text} {number}" for number in range(30) for text in ("a", "b c", "d")]
    found = client.embed_many("e5", texts, request_key="documents")
    assert_same(found.vectors, client.embed_many("plain", [DOCUMENT + text for text in texts]).vectors)
    with pytest.raises(InvalidRequest, match="a job embeds documents"):
        client.embed_batch("e5", texts, input_type="query", request_key="queries")


def test_a_reply_says_which_prompt_was_read_where_there_are_any(client: Client) -> None:
    said = [
        client.call("embed.query", {"model": model, "text": "a", **more}).get("input_type")
        for model, more in (("plain", {}), ("e5", {}), ("e5", {"input_type": "document"}))
    ]
    assert said == [None, "query", "document"]


def test_prompts_are_part_of_the_fingerprint(
    client: Client, fingerprints: dict[str, str], tiny_directory: Path
) -> None:
    assert client.embed_query("e5", "a").fingerprint == fingerprints["e5"] != fingerprints["plain"]
    shorter = {"query": QUERY.rstrip(), "document": DOCUMENT}
    other = load_model(client, tiny_directory, engine="reference", model_id="other", prompts=shorter, certify=False)
    none = load_model(
        client,
        tiny_directory,
        engine="reference",
        model_id="none",
        prompts={"query": "", "document": ""},
        certify=False,
    )
    assert other["fingerprint"] not in fingerprints.values()
    assert none["fingerprint"] == fingerprints["plain"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"prompts": {"query": "a " * 200}}, "query prompt takes"),
        ({"prompts": {"queries": "a"}}, "queries"),
        ({"prompts": {"query": 5}}, "query"),
        ({"prompts": {"query": "a"}, "task": "rerank"}, "prompts belong to models that embed"),
    ],
)
def test_prompts_that_cannot_be_are_refused(
    client: Client, tiny_directory: Path, tmp_path: Path, params: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        load_model(client, tiny_directory, engine="reference", model_id="wrong", certify=False, **params)


def test_an_input_type_that_is_none_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="input_type"):
        client.embed_query("e5", "a", input_type="passage")


def assert_same(found: object, wanted: object) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
