"""Real answers of every method against the page: each of their fields is named there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import SynapseError
from synapse_host.testing.documented_pages import PageRun
from synapse_host.testing.models.tiny_gguf import TinyDecoder, write_tiny_decoder
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.running_host import RunningHost, load_model

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text("utf-8")
#: Objects whose keys are data, or are described elsewhere.
OPEN = {"build_flags", "evidence", "error", "refusals"}
#: Certified in a moment.
TINY = TinyBert(seed=6, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=64)

RANKER = TinyBertReranker(seed=41, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130)


def sections() -> dict[str, str]:
    """Heading of the second level -> its text."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def text_for(method: str) -> str:
    """The section of a method with those it refers to."""
    found = sections()
    refers = {
        "embed.query": ["The inference envelope"],
        "rerank.score": ["The inference envelope"],
        "embed.batch": ["The inference envelope", "embed.query"],
        "microllm.oneshot": ["The inference envelope"],
        "embed.result": ["The inference envelope", "embed.query", "Job status"],
        "job.resume": ["Job status"],
        "job.cancel": ["Job status"],
        "admission.status": ["Job status"],
        "model.status": ["model.load"],
        "model.unload": ["model.status"],
        "probe.status": ["probe.report"],
        "lanes.pause": ["lanes.status"],
        "lanes.resume": ["lanes.status"],
    }
    return "\n".join(found[name] for name in [method, *refers.get(method, [])])


def keys_of(value: Any) -> Iterator[str]:
    """Every key of an answer, at any depth, but for open objects."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            if key not in OPEN:
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def refused(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The details of a refusal."""
    with pytest.raises(SynapseError) as refusal:
        client.call(method, params)
    return refusal.value.details or {}


@pytest.fixture(scope="session")
def answers(
    tutorial: PageRun, documented_host: RunningHost, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """One answer of each method, from a host that holds a certified model."""
    assert tutorial.status == 0, tutorial.output
    write_model(directory := tmp_path_factory.mktemp("tiny"), TINY, "f32")
    write_model(ranker := tmp_path_factory.mktemp("ranker"), RANKER, "f32")
    with documented_host.client() as client:
        load_model(client, directory, engine="reference", model_id="tiny", certify=False)
        load_model(client, ranker, engine="reference", model_id="ranker", task="rerank")
        write_tiny_decoder(decoder := tmp_path_factory.mktemp("decoder"), TinyDecoder(seed=1))
        load_model(client, decoder, engine="llama", task="generate", model_id="gen", certify=False)
        probe = client.probe_start(["tiny"])
        job = client.call("embed.batch", {"model": "minilm", "texts": ["a"] * 70, "request_key": "documented"})
        return {
            "models.list": client.models_list(),
            "models.catalog": client.call("models.catalog"),
            "probe.start": probe,
            "probe.status": client.wait_for_probe(probe["job_id"]),
            "probe.report": client.probe_report(),
            "admission.status": client.call("admission.status"),
            "lanes.pause": client.call("lanes.pause", {"scope": "neural_engine", "duration_ms": 60_000, "reason": "a"}),
            "lanes.status": client.call("lanes.status"),
            "lanes.resume": client.call("lanes.resume"),
            "aliases.check_index": client.call(
                "aliases.check_index", {"index_fingerprint": "a", "provenance_set": ["b"]}
            ),
            "alias.declare": client.call("alias.declare", {"left": "a" * 64, "right": "b" * 64}),
            "alias.retract": client.call("alias.retract", {"left": "a" * 64, "right": "b" * 64}),
            "embed.query": client.call("embed.query", {"model": "minilm", "text": "a"}),
            "embed.batch": client.call("embed.batch", {"model": "minilm", "texts": ["a", "b"]}),
            "embed.result": client.call("embed.result", {"job_id": job["job_id"]}),
            "job.resume": client.call("job.resume", {"job_id": job["job_id"]}),
            "job.cancel": client.call("job.cancel", {"job_id": job["job_id"]}),
            "rerank.score": client.call("rerank.score", {"model": "ranker", "query": "a", "candidates": ["b"]}),
            "microllm.oneshot": client.call("microllm.oneshot", {"model": "gen", "prompt": "a", "max_tokens": 2}),
            "models.download": refused(client, "models.download", {"catalog_id": "gte-modernbert-base"}),
            "models.download.cancel": refused(client, "models.download.cancel", {"job_id": "none"}),
            "models.remove": client.call("models.remove", {"catalog_id": "gte-modernbert-base"}),
            "cache.pin": client.call("cache.pin", {"source_url": str(decoder / "model.gguf")}),
            "cache.gc": client.call("cache.gc", {"grace_ms": 0}),
            "model.status": client.model_status(model_id="minilm"),
            "model.unload": _unloaded(client, "minilm", job["job_id"]),
            "model.load": client.model_load(source="file", path="/nonexistent", engine="cpu"),
        }


def _unloaded(client: Client, model_id: str, job_id: str) -> dict[str, Any]:
    """Unload a model when the job that holds it is done."""
    while client.model_status(job_id=job_id)["state"] in ("queued", "running"):
        pass
    return client.model_unload(model_id)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", [heading for heading in sections() if "." in heading])
def test_every_field_of_an_answer_is_named(method: str, answers: dict[str, dict[str, Any]]) -> None:
    named = set(re.findall(r"`(?:[a-z]+\.)*([a-z0-9_]+)`", text_for(method))) | {"module_generation"}
    assert set(keys_of(answers[method])) - named == set()
