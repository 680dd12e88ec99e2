"""The pins: what they cover, what they leave out, and that a script that shares no code with the host agrees."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synapse_host.catalog.document import SHIPPED, parse_catalog, read_catalog
from synapse_host.catalog.pins import computed_pin
from synapse_host.tokenization.library_tokenizer import sanitized_digest

Json = dict[str, Any]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "catalog_pins.py"
#: Members of an entry or a row that say nothing about the numbers.
NO_IDENTITY = {
    "name", "description", "default_for_task", "upstream", "self_check", "shipped", "attention_units",
    "rerank_abs_tolerance", "fingerprint", "path", "backends", "manifest_digest", "unpinned_flags",
}  # fmt: skip


def document() -> Json:
    shipped: Json = json.loads(SHIPPED.read_text("utf-8"))
    return shipped


def pins_of(changed: Json) -> list[str]:
    return [computed_pin(entry, row) for entry in parse_catalog(json.dumps(changed).encode()) for row in entry.backends]


def test_every_shipped_pin_fits_its_row() -> None:
    rows = [(entry, row) for entry in read_catalog() for row in entry.backends]
    assert len(rows) == 14
    assert [computed_pin(entry, row) for entry, row in rows] == [row.fingerprint for _, row in rows]


def test_the_independent_script_computes_the_same_and_finds_a_wrong_one(tmp_path: Path) -> None:
    listed = subprocess.run([sys.executable, "-I", SCRIPT], capture_output=True, text=True, check=True).stdout
    expected = {
        entry.lane_id(row.backend): computed_pin(entry, row) for entry in read_catalog() for row in entry.backends
    }
    assert dict(line.split(" ")[:2] for line in listed.splitlines()) == expected
    tampered = document()
    tampered["entries"][0]["backends"][0]["fingerprint"] = "0" * 64
    (tmp_path / "catalog.json").write_text(json.dumps(tampered))
    run = subprocess.run([sys.executable, "-I", SCRIPT, tmp_path / "catalog.json"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stdout.count("the file has another") == 1


def test_the_script_takes_a_published_tokenizer_and_no_other_file(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "catalog.json", tmp_path / "tokenizer.json"
    # Keys past the first plane sort by their surrogates, before the private use area.
    vocab = {"a": 0, "\U0001f600": 1, "\ue000": 2}
    data = json.dumps({"truncation": {"max_length": 8}, "padding": None, "model": {"vocab": vocab}}).encode()
    tokenizer.write_bytes(data)
    changed = document()
    entry = changed["entries"][0]
    run = [sys.executable, "-I", SCRIPT, "--write", "--tokenizer", f"{entry['id']}={tokenizer}", path]
    path.write_text(json.dumps(changed))
    refused = subprocess.run(run, capture_output=True, text=True)
    assert (refused.returncode, "the document pins" in refused.stderr) == (1, True)
    assert json.loads(path.read_text()) == changed
    pinned = next(file for file in entry["files"] if file["role"] == "tokenizer")
    pinned.update(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    path.write_text(json.dumps(changed))
    subprocess.run(run, capture_output=True, check=True)
    written = read_catalog(path).entry(entry["id"])
    assert written is not None
    assert written.sanitized_tokenizer_sha256 == sanitized_digest(data)
    assert [computed_pin(written, row) for row in written.backends] == [row.fingerprint for row in written.backends]


def test_the_script_needs_the_standard_library_alone() -> None:
    text = SCRIPT.read_text("utf-8")
    imported = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported - {"__future__"} <= sys.stdlib_module_names


def _changed(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 or 2
    if value is None:
        return "f" * 64
    assert isinstance(value, str)
    others = {"cls": "last", "last": "cls", "f16": "bf16", "f32": "bf16", "pair": "chat", "logit": "probability"}
    if value in others:
        return others[value]
    if len(value) == 64 and value.isalnum():
        return value[1:] + ("0" if value[0] != "0" else "1")
    return value + "x"


def _identity_fields() -> Iterator[tuple[str, Callable[[Json], Json]]]:
    """Every scalar of the gte reranker's first row and of what it hangs on, with the way to its place."""
    entry = document()["entries"][1]
    yield from ((name, lambda d: d["entries"][1]) for name in ("family", "vocab_size", "sanitized_tokenizer_sha256"))
    yield from ((name, lambda d: d["entries"][1]["template"]) for name in ("score",))
    yield from ((name, lambda d: d["engines"]["metal"]) for name in ("engine", "version", "kernel_revision"))
    for number in range(len(entry["files"])):
        for name in ("sha256", "size_bytes"):
            yield name, lambda d, number=number: d["entries"][1]["files"][number]
    for name in entry["backends"][0]:
        if name not in NO_IDENTITY and name != "backend":
            yield name, lambda d: d["entries"][1]["backends"][0]


FIELDS = list(_identity_fields())


@pytest.mark.parametrize(("name", "place"), FIELDS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(FIELDS)])
def test_changing_an_identity_bearing_field_changes_the_pin(name: str, place: Callable[[Json], Json]) -> None:
    before, changed = pins_of(document()), document()
    holder = place(changed)
    holder[name] = _changed(holder[name])
    metal = len(document()["entries"][0]["backends"])
    assert pins_of(changed)[metal] != before[metal]


def test_flags_quantisation_task_id_and_the_set_of_files_are_identity_too() -> None:
    before = pins_of(document())[0]
    for change in (
        lambda d: d["engines"]["metal"]["build_flags"].update(fast="yes"),
        lambda d: d["entries"][0]["backends"][0].update(quant="q8"),
        lambda d: d["entries"][0].update(id="another-id"),
        lambda d: d["entries"][0]["files"][2]["backends"].remove("metal"),
    ):
        changed = document()
        change(changed)
        assert before not in pins_of(changed)


def test_what_people_and_schedulers_read_is_no_identity() -> None:
    changed = document()
    entry = changed["entries"][0]
    entry.update(name="Other", description="Other", self_check=None)
    entry["upstream"]["revision"] = "0" * 40
    entry["files"][0]["path"] = "other.safetensors"
    entry["backends"][0]["attention_units"] += 1
    assert pins_of(changed) == pins_of(document())


def test_every_member_of_the_document_is_on_one_side_of_the_line() -> None:
    covered = {name for name, _ in FIELDS} | {"layout", "quant", "task", "id", "role", "build_flags"} | NO_IDENTITY
    entry = document()["entries"][1]
    members = set(entry) | set(entry["backends"][0]) | set(entry["files"][0]) | set(entry["template"])
    members |= set(document()["engines"]["metal"])
    assert members - {"files", "template", "backend"} <= covered


def test_the_manifest_digest_follows_files_and_origin() -> None:
    entries = document()["entries"]
    before = parse_catalog(SHIPPED.read_bytes()).entries[0].manifest_digest
    for change in (
        lambda e: e["upstream"].update(revision="0" * 40),
        lambda e: e["files"][0].update(size_bytes=1),
        lambda e: e["files"][1].update(path="other.json"),
        lambda e: e["files"].reverse(),
    ):
        changed = {**document(), "entries": copy.deepcopy(entries)}
        change(changed["entries"][0])
        assert parse_catalog(json.dumps(changed).encode()).entries[0].manifest_digest != before
