"""The index of a checkpoint in several files: read when it is sound, refused by what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synapse_host.model_files.shard_index import MAX_FILES, read_shard_index


def index(places: Any, **more: Any) -> bytes:
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": places, **more}).encode()


def test_tensors_are_grouped_by_file_in_the_order_of_names() -> None:
    found = read_shard_index(index({"b": "m-2.safetensors", "a": "m-1.safetensors", "c": "m-1.safetensors"}))
    assert found.files == ("m-1.safetensors", "m-2.safetensors")
    assert found.tensors["m-1.safetensors"] == {"a", "c"}


def test_a_file_is_held_against_what_the_index_says_of_it() -> None:
    found = read_shard_index(index({"a": "m.safetensors", "b": "n.safetensors"}))
    found.check("m.safetensors", ["a"])
    with pytest.raises(ValueError, match=r"m\.safetensors has no tensor 'a', which the index promises"):
        found.check("m.safetensors", [])
    with pytest.raises(ValueError, match=r"m\.safetensors has a tensor 'b', which the index puts elsewhere"):
        found.check("m.safetensors", ["a", "b"])


@pytest.mark.parametrize(
    "file",
    [
        "../m.safetensors", "/m.safetensors", "a/m.safetensors", "a\\m.safetensors", "c:m.safetensors", ".safetensors",
        ".m.safetensors", "m.bin", "m.safetensors.index.json", "m\n.safetensors", "m\0.safetensors", "", 7, None, ["m"],
    ],
)  # fmt: skip
def test_only_plain_names_beside_the_index_are_taken(file: Any) -> None:
    with pytest.raises(ValueError, match=r"no plain \.safetensors name beside it"):
        read_shard_index(index({"a": file}))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no weight_map"),
        (b"{}", "no weight_map"),
        (b'{"weight_map": {"a": "m.safetensors", "b": "n.safetensors", "a": "n.safetensors"}}', "names 'a' twice"),
        (b'{"weight_map": {"a": "m.safetensors"}, "weight_map": {"a": "n.safetensors"}}', "names 'weight_map' twice"),
        (index({}), "no weight_map"),
        (index([]), "no weight_map"),
        (index({str(i): f"m{i}.safetensors" for i in range(MAX_FILES + 1)}), f"names {MAX_FILES + 1} files"),
    ],
)
def test_what_is_no_index_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_shard_index(data)
