"""What the check at load holds a lane against: token ids and the published implementation's figures for them.

The shipped document has the four catalog models. Its figures are float32, packed little-endian in base64; ``scripts/
make_self_check_fixtures.py`` wrote it. Every model carries a seal, the digest of its own entry, so that a damaged or
edited entry is refused instead of failing an honest lane, or passing another.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.values import value_object

#: The tokens a reranker by readout takes its probability from, as (yes, no).
Readout = tuple[int, int]
#: Those of a model whose config.json names none. The family has them too; the host imports no family.
PUBLISHED_READOUT: Readout = (9693, 2152)


class FixtureInvalid(ValueError):
    """Fixtures that are absent, damaged or not what their seal says; the message names the model."""


@value_object
class FixtureCase:
    """One row of token ids and its figures.

    ``expected`` is a unit vector, its first components where ``whole`` is False, one probability, or nothing where no
    figures are published. Cases of one ``pool`` are candidates of one query.
    """

    case_id: str
    ids: tuple[int, ...]
    expected: tuple[float, ...] = ()
    whole: bool = True
    pool: str | None = None


@value_object
class Fixture:
    """The cases of one model, and the digest that seals them; ``profile_rows`` are those without published figures."""

    model_id: str
    revision: int
    task: Literal["embed", "rerank"]
    hf_revision: str
    cases: tuple[FixtureCase, ...]
    seal: str
    readout: Readout | None = None
    profile_rows: tuple[FixtureCase, ...] = ()

    @property
    def rows(self) -> list[list[int]]:
        """Token ids of every case, in order: what the lane computes."""
        return [list(case.ids) for case in self.cases]


def shipped_fixtures() -> Mapping[str, Fixture]:
    """The fixtures of the catalog's models by catalog id.

    Raises:
        FixtureInvalid: the shipped document is damaged.

    """
    return _shipped()


def parse_fixtures(document: Mapping[str, Any]) -> dict[str, Fixture]:
    """Fixtures by model id from a document ``{revision, models: {id: entry}}``.

    Raises:
        FixtureInvalid: a member is missing or malformed, or a seal does not fit.

    """
    try:
        revision = int(document["revision"])
        return {name: _fixture(name, revision, entry) for name, entry in document["models"].items()}
    except (KeyError, TypeError, ValueError, struct.error) as fault:
        if isinstance(fault, FixtureInvalid):
            raise
        raise FixtureInvalid(f"the fixtures of the self-check cannot be read: {fault!r}; reinstall the host") from fault


def sealed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """``entry`` with its seal: the digest of the canonical JSON of everything else in it."""
    bare = {name: value for name, value in entry.items() if name != "seal"}
    return {**bare, "seal": sha256_hex(canonical_json(bare))}


def packed(figures: Sequence[float]) -> str:
    """Figures as the document holds them: float32, little-endian, base64."""
    return base64.b64encode(struct.pack(f"<{len(figures)}f", *figures)).decode()


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, Fixture]:
    text = resources.files(__package__).joinpath("self_check_fixtures.json").read_text("utf-8")
    return parse_fixtures(json.loads(text))


def _fixture(name: str, revision: int, entry: Mapping[str, Any]) -> Fixture:
    if sealed(entry)["seal"] != entry.get("seal"):
        raise FixtureInvalid(f"the self-check fixtures of {name!r} are not what their seal says; reinstall the host")
    readout = entry.get("readout")
    return Fixture(
        model_id=name,
        revision=revision,
        task=_task(name, entry["task"]),
        hf_revision=entry["hf_revision"],
        cases=tuple(_case(name, case) for case in entry["cases"]),
        seal=entry["seal"],
        readout=None if readout is None else (readout["yes"], readout["no"]),
        profile_rows=tuple(FixtureCase(row["id"], tuple(row["ids"])) for row in entry.get("profile_rows", ())),
    )


def _task(name: str, word: Any) -> Literal["embed", "rerank"]:
    if word == "embed":
        return "embed"
    if word == "rerank":
        return "rerank"
    raise FixtureInvalid(f"the self-check fixtures of {name!r} have task {word!r}; it is embed or rerank")


def _case(name: str, case: Mapping[str, Any]) -> FixtureCase:
    try:
        raw = base64.b64decode(case["expected"], validate=True)
    except binascii.Error as fault:
        raise FixtureInvalid(f"self-check case {case.get('id')!r} of {name!r} is no base64: {fault}") from fault
    figures = struct.unpack(f"<{len(raw) // 4}f", raw)
    return FixtureCase(case["id"], tuple(case["ids"]), figures, case.get("whole", True), case.get("pool"))
