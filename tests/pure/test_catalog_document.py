"""The shipped document, and every rule a document must keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from synapse_host.catalog.document import SHIPPED, CatalogInvalid, parse_catalog, read_catalog
from synapse_host.catalog.entries import CATALOG_BACKENDS, Catalog
from synapse_host.certification.self_check_fixtures import shipped_fixtures

Document = dict[str, Any]
#: Wire contract, catalog serving: the frozen ids with task, repository and revision.
FROZEN = {
    "gte-modernbert-base": (
        "embed", "Alibaba-NLP/gte-modernbert-base", "e7f32e3c00f91d699e8c43b53106206bcc72bb22",
    ),
    "gte-reranker-modernbert-base": (
        "rerank", "Alibaba-NLP/gte-reranker-modernbert-base", "f7481e6055501a30fb19d090657df9ec1f79ab2c",
    ),
    "qwen3-embedding-0.6b": (
        "embed", "Qwen/Qwen3-Embedding-0.6B", "97b0c614be4d77ee51c0cef4e5f07c00f9eb65b3",
    ),
    "qwen3-reranker-0.6b": (
        "rerank", "Qwen/Qwen3-Reranker-0.6B", "e61197ed45024b0ed8a2d74b80b4d909f1255473",
    ),
}  # fmt: skip


def shipped_json() -> Document:
    document: Document = json.loads(SHIPPED.read_text("utf-8"))
    return document


def test_the_four_frozen_entries() -> None:
    catalog = read_catalog()
    found = {entry.id: (entry.task, entry.upstream.hf_repo, entry.upstream.revision) for entry in catalog}
    assert found == FROZEN
    assert {entry.id for entry in catalog if entry.default_for_task} == {
        "gte-modernbert-base",
        "gte-reranker-modernbert-base",
    }
    assert {row.max_tokens for entry in catalog for row in entry.backends} == {8192}
    assert "cpu" not in {row.backend for entry in catalog for row in entry.backends}


def test_what_is_shipped_is_metal_for_three_and_nothing_for_the_fourth() -> None:
    catalog = read_catalog().with_backends(())
    assert {entry.id: entry.lane_ids for entry in catalog} == {
        "gte-modernbert-base": ["gte-modernbert-base-metal"],
        "gte-reranker-modernbert-base": ["gte-reranker-modernbert-base-metal"],
        "qwen3-embedding-0.6b": ["qwen3-embedding-0.6b-metal"],
        "qwen3-reranker-0.6b": [],
    }
    fourth = catalog.entry("qwen3-reranker-0.6b")
    assert fourth is not None
    assert fourth.files == ()


def test_a_setting_switches_the_other_rows_on() -> None:
    whole = {entry.id: entry.lane_ids for entry in read_catalog()}
    assert {entry.id: entry.lane_ids for entry in read_catalog().with_backends(CATALOG_BACKENDS)} == whole
    assert whole["qwen3-reranker-0.6b"] == [f"qwen3-reranker-0.6b-{name}" for name in ("ane", "cuda", "vulkan")]
    one = read_catalog().with_backends(["vulkan"]).entry("qwen3-reranker-0.6b")
    assert one is not None
    assert one.lane_ids == ["qwen3-reranker-0.6b-vulkan"]
    assert [file.role for file in one.files] == ["model", "tokenizer", "config"]


@pytest.mark.parametrize(
    ("model_id", "derived"),
    [
        ("gte-modernbert-base-metal", ("gte-modernbert-base", "metal")),
        ("qwen3-reranker-0.6b-metal", ("qwen3-reranker-0.6b", "metal")),
        ("gte-reranker-modernbert-base-ane", ("gte-reranker-modernbert-base", "ane")),
        ("gte-modernbert-base", None),
        ("gte-modernbert-base-cpu", None),
        ("gte-modernbert-basemetal", None),
        ("-metal", None),
    ],
)
def test_derived_ids_are_reserved_declared_or_not(model_id: str, derived: tuple[str, str] | None) -> None:
    catalog = read_catalog()
    found = catalog.derived(model_id)
    assert (found and (found[0].id, found[1])) == derived
    assert catalog.reserves(model_id) == (derived is not None or model_id == "gte-modernbert-base")


def test_a_lane_id_is_declared_only_where_its_row_is_switched_on() -> None:
    assert read_catalog().lane("gte-modernbert-base-vulkan") is not None
    assert read_catalog().with_backends(()).lane("gte-modernbert-base-vulkan") is None


def spoil(change: Callable[[Document], object]) -> Catalog:
    document = shipped_json()
    change(document)
    return parse_catalog(json.dumps(document).encode())


def first(document: Document) -> Document:
    entry: Document = document["entries"][0]
    return entry


FAULTS: dict[str, tuple[Callable[[Document], object], str]] = {
    "unknown field": (lambda d: first(d).update(colour="red"), "colour"),
    "no positive size": (lambda d: first(d)["files"][0].update(size_bytes=0), "size_bytes"),
    "no digest": (lambda d: first(d)["files"][0].update(sha256="zz"), "sha256"),
    "unpinned revision": (lambda d: first(d)["upstream"].update(revision="main"), "revision"),
    "id charset": (lambda d: first(d).update(id="Has Space"), "id"),
    "path upwards": (lambda d: first(d)["files"][0].update(path="../model"), "path"),
    "backend without an engine": (lambda d: d["engines"].pop("ane"), "'ane' is declared and has no engine"),
    "backend nobody knows": (
        lambda d: (d["engines"].update(cpu=d["engines"]["ane"]), first(d)["backends"][0].update(backend="cpu")),
        "declares backend 'cpu'",
    ),
    "id twice": (lambda d: d["entries"][1].update(id=first(d)["id"]), "is given 2 times"),
    "id of a lane": (lambda d: d["entries"][3].update(id="gte-modernbert-base-ane"), "is reserved for a lane"),
    "pin twice": (
        lambda d: first(d)["backends"][0].update(fingerprint=first(d)["backends"][1]["fingerprint"]), "pins 2 rows",
    ),
    "two defaults": (lambda d: d["entries"][2].update(default_for_task=True), "has 2 default entries"),
    "no default": (lambda d: first(d).update(default_for_task=False), "has 0 default entries"),
    "embed called rerank": (lambda d: first(d).update(id="a-reranker"), "its id says rerank"),
    "template of an embedder": (lambda d: first(d).update(template={"layout": "pair", "score": "logit"}), "template"),
    "reranker without": (lambda d: d["entries"][1].pop("template"), "has no template"),
    "template of nothing": (lambda d: d["entries"][1].update(template={"layout": "pair"}), "composes no pairs"),
    "row twice": (lambda d: first(d)["backends"][1].update(backend="metal"), "declares 'metal' 2 times"),
    "file twice": (lambda d: first(d)["files"][2].update(path="tokenizer.json"), "names file 'tokenizer.json' 2 times"),
    "file for nobody": (lambda d: first(d)["files"][0].update(backends=[]), "no backend"),
    "file for a stranger": (lambda d: first(d)["files"][0]["backends"].append("tpu"), "['tpu']"),
    "two models": (lambda d: first(d)["files"][2].update(role="model"), "needs one model"),
    "size past any disk": (lambda d: first(d)["files"][0].update(size_bytes=2**63), "size_bytes"),
    "digest of two sizes": (
        lambda d: first(d)["files"][1].update(sha256=first(d)["files"][0]["sha256"]), "as content of two sizes",
    ),
    "repository upwards": (lambda d: first(d)["upstream"].update(hf_repo="../.."), "hf_repo"),
    "path with dots": (lambda d: first(d)["files"][0].update(path="a.."), "path"),
    "tolerance of nothing": (
        lambda d: d["entries"][1]["backends"][0].update(rerank_abs_tolerance=-1.0), "rerank_abs_tolerance",
    ),
    "endless tolerance": (
        lambda d: d["entries"][1]["backends"][0].update(rerank_abs_tolerance=float("inf")), "rerank_abs_tolerance",
    ),
    "no entries": (lambda d: d["entries"].clear(), "entries"),
    "attention": (lambda d: first(d)["backends"][0].update(attention_units=8192), "attention_units"),
    "unnormalised": (lambda d: first(d)["backends"][0].update(normalize=False), "does not normalize"),
    "mean": (lambda d: first(d)["backends"][0].update(pooling="mean"), "pools by mean"),
    "tolerance": (lambda d: d["entries"][1]["backends"][0].pop("rerank_abs_tolerance"), "rerank_abs_tolerance"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_document_that_breaks_a_rule_is_refused_with_it(fault: str) -> None:
    change, said = FAULTS[fault]
    with pytest.raises(CatalogInvalid) as refused:
        spoil(change)
    assert said in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(CatalogInvalid):
        parse_catalog(data)


def test_entries_come_by_id_whatever_their_order() -> None:
    assert [entry.id for entry in spoil(lambda d: d["entries"].reverse())] == sorted(FROZEN)


def test_every_entry_is_checked_against_a_reference_of_its_own_revision() -> None:
    fixtures = shipped_fixtures()
    for entry in read_catalog():
        fixture = fixtures[entry.self_check or ""]
        assert (fixture.hf_revision, fixture.task) == (entry.upstream.revision, entry.task)
        assert fixture.revision == entry.fixture_revision
        assert max(map(len, fixture.rows)) <= min(row.max_tokens for row in entry.backends)
        widths = {len(case.expected) for case in fixture.cases if case.whole}
        assert widths == ({row.dims for row in entry.backends} if entry.task == "embed" else {1})
