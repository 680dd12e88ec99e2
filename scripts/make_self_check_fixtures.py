"""Write the shipped fixtures of the check at load from figures of the published implementation.

The input is JSON: ``{about: {reference}, models: {id: {hf_revision, operation, readout_ids?, cases: [{id, category,
input_ids, output | output_prefix}]}}}`` with float32 figures of transformers: a case has one probability, or one unit
vector or its first components. Nothing is computed here; a change of the figures needs a new ``REVISION``, which every
lane's check follows. Rows of the cases of a profile that have no figures are made here, from the rows that have: their
figures are computed where they are needed.

    python scripts/make_self_check_fixtures.py FIGURES.json
"""

from __future__ import annotations

import json
import sys
from itertools import cycle, islice, takewhile
from pathlib import Path
from typing import Any

from synapse_host.certification.self_check_fixtures import packed, sealed

REVISION = 1
#: Lengths in tokens, around the step of shapes that backends pad to.
BOUNDARY = (127, 128, 129)
TARGET = Path(__file__).parents[1] / "synapse_host" / "certification" / "self_check_fixtures.json"


def document_of(figures: dict[str, Any]) -> dict[str, Any]:
    """The document of the shipped fixtures."""
    models = {name: sealed(_entry(model)) for name, model in sorted(figures["models"].items())}
    return {"revision": REVISION, "reference": figures["about"]["reference"], "models": models}


def _entry(model: dict[str, Any]) -> dict[str, Any]:
    entry = {
        "hf_revision": model["hf_revision"],
        "task": model["operation"],
        "cases": [_case(case) for case in model["cases"]],
        "profile_rows": _boundary_rows(model["cases"]),
    }
    return {**entry, "readout": model["readout_ids"]} if "readout_ids" in model else entry


def _boundary_rows(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows at the boundary of 128 tokens that the figures lack: the longest row, its text cut short or repeated.

    What all rows begin and end with alike, a query or a template say, stays whole.
    """
    rows = [case["input_ids"] for case in cases]
    longest = max(rows, key=len)
    lead, tail = _alike(rows), _alike([row[::-1] for row in rows])
    head, text, end = longest[:lead], longest[lead:-tail], longest[-tail:]
    made = {f"boundary-{length}": length - lead - tail for length in BOUNDARY}
    known = {case["id"] for case in cases}
    return [
        {"id": name, "ids": [*head, *islice(cycle(text), kept), *end]}
        for name, kept in made.items()
        if name not in known
    ]


def _alike(rows: list[list[int]]) -> int:
    """How many ids all rows begin with alike."""
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*rows, strict=False)))


def _case(case: dict[str, Any]) -> dict[str, Any]:
    expected = case.get("output", case.get("output_prefix"))
    packed_case = {
        "id": case["id"],
        "ids": case["input_ids"],
        "expected": packed(expected if isinstance(expected, list) else [expected]),
    }
    if "output_prefix" in case:
        packed_case["whole"] = False
    if case["category"].startswith("pool_"):
        packed_case["pool"] = case["category"]
    return packed_case


def main() -> None:
    """Write the document beside the module that reads it."""
    document = document_of(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    TARGET.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
