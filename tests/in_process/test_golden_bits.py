"""Vectors of one seeded model on the reference, frozen beside the kernel revision that made them.

When this fails and the numbers were meant to move, run ``python tests/fixtures/freeze_golden_bits.py`` and say so in
the changelog: every fingerprint changes with the revision.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families.bert import BertConfig
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.testing.models import golden_bits

FROZEN = json.loads((Path(__file__).parents[1] / "fixtures" / "golden_bits.json").read_text())


def test_bits_have_not_moved_under_an_unmoved_revision(tmp_path: Path) -> None:
    assert golden_bits.fault(FROZEN, golden_bits.measure(tmp_path)) is None


def test_every_family_has_golden_bits() -> None:
    assert set(golden_bits.GOLDEN) == set(FAMILIES)


FAULTS = {
    "wrong eps": ("layer_norm", lambda call, self, x, w, b, eps: call(self, x, w, b, eps + 1e-5), "bert"),
    "tanh for erf": (
        "linear",
        lambda call, self, x, w, b=None, act=None: call(self, x, w, b, act and "gelu_tanh"),
        "xlm-roberta",
    ),
    "shifted positions": (
        "positions",
        lambda call, self, batch, table, first=0: call(self, batch, table, first + 1),
        "bert",
    ),
    "gate in its tanh form": ("geglu", lambda call, self, x, kind: call(self, x, "tanh"), "modernbert"),
    "gate and up exchanged": ("swiglu", lambda call, self, gate, up: call(self, up, gate), "qwen3"),
    "another token's row": (
        "embedding",
        lambda call, self, ids, table: call(self, ids, np.roll(table, 1, 0)),
        "static",
    ),
}


@pytest.mark.parametrize(("op", "fault", "family"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_moves_the_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, fault: Any, family: str
) -> None:
    original = getattr(ReferenceOps, op)
    monkeypatch.setattr(ReferenceOps, op, lambda *args, **kwargs: fault(original, *args, **kwargs))
    found = golden_bits.measure(tmp_path, [family])
    said = str(golden_bits.fault({**FROZEN, "kernel_revision": found["kernel_revision"]}, found))
    assert f"the bits moved ({family}_sha256)" in said


def test_a_stale_fixture_is_a_fault_of_its_own() -> None:
    assert "freeze" in str(golden_bits.fault(FROZEN, {**FROZEN, "kernel_revision": "another"}))


def test_the_family_itself_is_part_of_the_revision() -> None:
    assert BertConfig.__module__.rpartition(".")[2] in golden_bits.revised_modules()
