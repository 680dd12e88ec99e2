"""What model.load fetches and what it refuses before anything is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from synapse_host.errors import InvalidRequest
from synapse_host.operations.load_manifest import LoadPlan, ModelLoadParams, load_plan
from synapse_host.operations.registry import Method, Registry, Reply, RequestContext

pytestmark = pytest.mark.anyio

SHA, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def file(name: str, sha: str = SHA) -> dict[str, str]:
    return {"url": name, "sha256": sha}


def plan(**given: Any) -> LoadPlan:
    return load_plan(ModelLoadParams.model_validate({"engine": "cpu", **given}))


HUB: dict[str, Any] = {
    "source": "hf",
    "repo": "some/model",
    "revision": COMMIT,
    "files": {"model": file("model.safetensors"), "tokenizer": file("tokenizer.json", OTHER)},
}


def test_files_of_a_hub_are_below_its_repository_and_commit() -> None:
    made = plan(**HUB)
    base = f"some/model/resolve/{COMMIT}"
    assert [(each.role, each.name, each.sha256, each.source) for each in made.fetched] == [
        ("model", "model.safetensors", SHA, f"{base}/model.safetensors"),
        ("tokenizer", "tokenizer.json", OTHER, f"{base}/tokenizer.json"),
    ]
    assert made.request.model_id == f"model-{SHA[:8]}"


def test_the_digest_of_the_model_may_stand_beside_it() -> None:
    files = {"tokenizer": file("tokenizer.json", OTHER), "config": file("config.json", THIRD)}
    made = plan(**{**HUB, "files": files, "expected_digest": SHA})
    assert [each.sha256 for each in made.fetched] == [SHA, OTHER, THIRD]


def test_more_files_come_along() -> None:
    files = {**HUB["files"], "extra": [file("model-00002-of-00002.safetensors", THIRD)]}
    assert plan(**{**HUB, "files": files}).fetched[-1].name == "model-00002-of-00002.safetensors"


def test_addresses_are_taken_whole_or_below_a_base() -> None:
    files = {"model": file("https://a.example/x/m.gguf?download=true"), "tokenizer": file("t.json", OTHER)}
    made = plan(source="url", url="https://b.example/dir/", files=files)
    assert [(each.name, each.source) for each in made.fetched] == [
        ("m.gguf", "https://a.example/x/m.gguf?download=true"),
        ("t.json", "https://b.example/dir/t.json"),
    ]
    assert made.request.model_id == f"m-{SHA[:8]}"


def test_a_local_directory_is_read_where_it_is_and_may_lack_a_file() -> None:
    made = plan(source="file", path="/models/mine")
    assert (made.fetched, made.request.directory, made.request.model_id) == ((), "/models/mine", None)
    mixed = plan(
        source="file", path="/models/mine", files={"tokenizer": file("https://a.example/tokenizer.json", OTHER)}
    )
    assert [each.source for each in mixed.fetched] == ["https://a.example/tokenizer.json"]


NO_DIGEST = {"model": "model.safetensors", "tokenizer": file("tokenizer.json", OTHER)}
REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "no path": ({"source": "file"}, "needs path", {"parameter": "path"}),
    "more files of a directory": (
        {"source": "file", "path": "/m", "files": {"extra": ["a.bin"]}}, "takes none", {"parameter": "files.extra"},
    ),
    "no repository": ({**HUB, "repo": None}, "owner/name", {"parameter": "repo"}),
    "repository with a path": ({**HUB, "repo": "a/b/../c"}, "owner/name", {"parameter": "repo"}),
    "no revision": ({**HUB, "revision": None}, "40 hex digits", {"parameter": "revision"}),
    "branch": ({**HUB, "revision": "main"}, "40 hex digits", {"parameter": "revision"}),
    "short commit": ({**HUB, "revision": COMMIT[:12]}, "40 hex digits", {"parameter": "revision"}),
    "hub file without a digest": ({**HUB, "files": NO_DIGEST}, "no digest", {"file": "model.safetensors"}),
    "default tokenizer without a digest": (
        {**HUB, "files": {"model": file("model.safetensors")}}, "no digest", {"file": "tokenizer.json"},
    ),
    "address without a digest": (
        {"source": "file", "path": "/m", "files": {"tokenizer": "https://a.example/t.json"}},
        "no digest",
        {"file": "https://a.example/t.json"},
    ),
    "branch in an address": (
        {"source": "file", "path": "/m", "files": {"tokenizer": file("https://a.example/a/b/resolve%2Fmain/t.json")}},
        "names a branch",
        {"file": "https://a.example/a/b/resolve%2Fmain/t.json"},
    ),
    "branch in a hub's address": (
        {**HUB, "files": {**HUB["files"], "config": file("https://a.example/a/b/resolve/main/c.json")}},
        "names a branch",
        {"file": "https://a.example/a/b/resolve/main/c.json"},
    ),
    "upwards": (
        {**HUB, "files": {**HUB["files"], "config": file("../config.json")}},
        "no name below",
        {"file": "../config.json"},
    ),
    "line break in a name": (
        {**HUB, "source": "url", "url": "http://h/", "files": {**HUB["files"], "config": file("a\nb")}},
        "no name below",
        {"file": "a\nb"},
    ),
    "line break in an address": (
        {**HUB, "files": {**HUB["files"], "config": file("http://h/a\nb")}}, "control", {"file": "http://h/a\nb"},
    ),
    "absolute": (
        {**HUB, "files": {**HUB["files"], "config": file("/etc/passwd")}}, "no name below", {"file": "/etc/passwd"},
    ),
    "another scheme": (
        {"source": "url", "files": {"model": file("ftp://a.example/m")}}, "neither a name nor", {"file": "ftp://a.example/m"},
    ),
    "base of another scheme": ({**HUB, "source": "url", "url": "file:///m"}, "no http(s)", {"parameter": "url"}),
    "base of no server": ({**HUB, "source": "url", "url": "http://["}, "is no address", {"parameter": "url"}),
    "port out of range": (
        {"source": "file", "path": "/m", "files": {"tokenizer": file("http://a.example:99999/t.json")}},
        "is no address",
        {"file": "http://a.example:99999/t.json"},
    ),
    "name without a base": ({**HUB, "source": "url"}, "no url it is below", {"file": "model.safetensors"}),
    "one name for two files": (
        {**HUB, "files": {**HUB["files"], "config": file("tokenizer.json", THIRD)}},
        "named twice",
        {"file": "tokenizer.json"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_not_pinned_or_misleads_is_refused(fault: str) -> None:
    given, said, details = REFUSED[fault]
    with pytest.raises(InvalidRequest) as refused:
        plan(**given)
    assert said in refused.value.message
    assert refused.value.details == details


def test_unknown_members_are_malformed() -> None:
    with pytest.raises(ValidationError):
        ModelLoadParams.model_validate({**HUB, "engine": "cpu", "branch": "main"})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model": 3}, "params.files.model = 3 is not accepted: a file is a name, or an object of url and sha256"),
        ({"model": {"url": "x"}}, "params.files.model.sha256 is missing: add it"),
        ({"model": ""}, "params.files.model = '' is not accepted: string should have at least 1 character"),
        (
            {"extra": ["m", {"url": 1, "sha256": SHA}]},
            "params.files.extra[1].url = 1 is not accepted: input should be a",
        ),
        (3, "params.files = 3 is not accepted: input should be a valid object"),
    ],
)
async def test_a_file_that_is_none_is_told_by_its_place_alone(files: Any, said: str) -> None:
    async def unreached(params: Any, context: RequestContext) -> Reply:
        raise AssertionError(params)

    registry = Registry([Method("model.load", "mutate", ModelLoadParams, unreached)])
    with pytest.raises(InvalidRequest) as refusal:
        await registry.dispatch("model.load", {"source": "file", "engine": "cpu", "files": files}, RequestContext(0.0))
    assert refusal.value.message.startswith(f"model.load: {said}")
    assert "; " not in refusal.value.message


@pytest.mark.parametrize("name", ["task", "kind", "capability"])
def test_the_task_has_other_names(name: str) -> None:
    assert plan(source="file", path="/m", **{name: "rerank"}).request.task == "rerank"


def test_two_names_of_the_task_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="kind"):
        plan(source="file", path="/m", task="embed", kind="rerank")
