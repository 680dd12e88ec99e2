"""Computes the pins of a catalog document with the standard library alone, independently of ``synapse_host``.

    python scripts/catalog_pins.py [FILE]            lists every lane with its pin; exits 1 where one does not fit
    python scripts/catalog_pins.py --write [FILE]    writes the pins that fit into the file
    python scripts/catalog_pins.py --write --tokenizer ID=TOKENIZER_JSON [--tokenizer ...] [FILE]
                                                     also puts in the identity of an entry's published tokenizer

It shares no code with the host on purpose: a slip in the host's construction shows as a difference here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).resolve().parent.parent / "synapse_host" / "catalog" / "catalog.json"
POOLING = {"mean": "mean", "cls": "cls", "last": "last_token"}

Json = dict[str, Any]


def sha256(text: str) -> str:
    """SHA-256 of the UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def canonical(value: object) -> str:
    """RFC 8785 for what stands in a catalog: ASCII keys, so code points sort as UTF-16 does; no fractions."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def compact(value: object) -> str:
    """JSON without blanks, members in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pin(document: Json, entry: Json, row: Json) -> str:
    """The fingerprint of one lane."""
    engine = document["engines"][row["backend"]]
    files = [file for file in entry["files"] if row["backend"] in file["backends"]]
    roles = {file["role"]: file for file in files}
    quant = row.get("quant", "none")
    described = {
        "backend": row["backend"],
        "catalog_id": entry["id"],
        "dims": row["dims"],
        "dtype": row["dtype"],
        "engine": {name: engine[name] for name in ("engine", "version", "build_flags")},
        "family": entry["family"],
        "files": [{name: file[name] for name in ("role", "sha256", "size_bytes")} for file in files],
        "kernel_revision": engine["kernel_revision"],
        "max_tokens": row["max_tokens"],
        "normalize": row["normalize"],
        "operation": entry["task"],
        "pooling": row["pooling"],
        "quant": quant,
        "sanitized_tokenizer_sha256": entry["sanitized_tokenizer_sha256"],
        "template": entry.get("template"),
        "vocab_size": entry["vocab_size"],
    }
    model = roles["model"]["sha256"]
    if "config" in roles:
        model = sha256(canonical([["config", roles["config"]["sha256"]], ["model", model]]))
    flags = {**engine["build_flags"], "precision": row["dtype"]}
    profile: Json = {
        "model_digest": model,
        "quant": quant,
        "engine": {
            "engine": engine["engine"],
            "version": engine["version"],
            "build_flags": dict(sorted(flags.items())),
        },
        "sanitized_tokenizer_digest": entry["sanitized_tokenizer_sha256"] or roles["tokenizer"]["sha256"],
        "pooling": POOLING[row["pooling"]],
        "normalization": "l2" if row["normalize"] else "none",
        "dtype": row["dtype"],
        "flash_attention": "disabled",
        "certified_shape": {
            "max_context_tokens": row["max_tokens"],
            "max_batch_tokens": 8192,
            "max_micro_batch_tokens": 3072,
            "max_sequences": 64,
        },
        "prompt_template": canonical(entry["template"]) if entry.get("template") else None,
        "thread_policy": "balanced",
        "operation": entry["task"],
        "kernel_revision": engine["kernel_revision"],
        "manifest_profile_digest": sha256(canonical(described)),
    }
    known = {name: value for name, value in profile.items() if value is not None}
    return sha256(compact([model, quant, sha256(compact(known))]))


def refuse_fraction(text: str) -> float:
    """Numbers are printed by more rules than are written here, and the tokenizers of the catalog have none."""
    raise SystemExit(f"the tokenizer has the fraction {text}; this script knows whole numbers alone")


def sorted_by_unit(value: object) -> object:
    """The members of every object in the order of RFC 8785, by UTF-16 code units."""
    if isinstance(value, dict):
        return {key: sorted_by_unit(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be"))}
    return [sorted_by_unit(item) for item in value] if isinstance(value, list) else value


def tokenizer_identity(entry: Json, path: Path) -> str:
    """The digest of a tokenizer without padding and truncation; it must be the file the document pins."""
    data = path.read_bytes()
    pinned = next(file["sha256"] for file in entry["files"] if file["role"] == "tokenizer")
    actual = hashlib.sha256(data).hexdigest()
    if actual != pinned:
        raise SystemExit(f"{path} has SHA-256 {actual}; the document pins {pinned} for {entry['id']}")
    document = json.loads(data.decode("utf-8"), parse_float=refuse_fraction)
    return sha256(compact(sorted_by_unit({**document, "padding": None, "truncation": None})))


def take_tokenizers(document: Json, named: list[str]) -> None:
    """Put the identities of the files in ``named`` (ID=FILE) into their entries."""
    entries = {entry["id"]: entry for entry in document["entries"]}
    for each in named:
        name, _, path = each.partition("=")
        if name not in entries:
            raise SystemExit(f"the document has no entry {name!r}; it has {', '.join(sorted(entries))}")
        entries[name]["sanitized_tokenizer_sha256"] = tokenizer_identity(entries[name], Path(path))


def main() -> int:
    """List the pins, or write them; the exit status says whether the file's own fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--write", action="store_true", help="write the computed pins into the file")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="ID=FILE", help="an entry's tokenizer.json")
    arguments = parser.parse_args()
    document = json.loads(arguments.file.read_text(encoding="utf-8"))
    take_tokenizers(document, arguments.tokenizer)
    differing = 0
    for entry in document["entries"]:
        for row in entry["backends"]:
            computed = pin(document, entry, row)
            fits = computed == row["fingerprint"]
            differing += not fits
            row["fingerprint"] = computed
            sys.stdout.write(f"{entry['id']}-{row['backend']} {computed}{'' if fits else ' (the file has another)'}\n")
    if arguments.write:
        arguments.file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
