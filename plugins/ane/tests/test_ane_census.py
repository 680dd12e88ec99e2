"""What programs are made of, counted; and which operations the engine is expected to leave to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synapse_ane.attention_program import SCORES_AT_ONCE
from synapse_ane.census import Census, CensusModel, census
from synapse_ane.mil import TARGET, Function, mb, types
from synapse_ane.placement_rules import LONGEST_AXIS, estimate, why_not

from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")

ENCODER = TinyModernBert(1, 24, 3, 2, 20, 97, 8192, span=128)
DECODER = TinyQwen3(1, 16, 2, 4, 2, 4, 24, 97, 8192, tied=True)
#: What a vector of length one costs beside the engine: it is computed in float32.
TAIL = {"cast", "maximum", "real_div", "reduce_sum_square", "reshape", "sqrt"}


class Weights:
    """A checkpoint in memory, names without their publisher's prefix."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}

    def tensor(self, name: str) -> Any:
        return self._tensors[name]


def counted(name: str, model: Any, length: int) -> Census:
    family = FAMILIES[name]
    config = family.config(model.config(), pooling="last", normalize=True)
    subject = CensusModel(family, config, family.head, model.hidden)
    return census(subject, Weights(model.tensors()), length, max_tokens=8192)


def test_a_short_program_is_one_and_all_but_its_tail_is_on_the_engine() -> None:
    found = counted("modernbert", ENCODER, 128)
    assert (found.programs, found.kinds["conv"], found.kinds["softmax"], found.kinds["gelu"]) == (1, 12, 3, 3)
    assert {kind for kind, _ in found.refused} == TAIL
    assert found.operations == found.kinds.total()
    assert found.share == 1 - len(TAIL) / found.operations
    assert "gather" not in found.kinds


@pytest.mark.parametrize(("name", "model"), [("modernbert", ENCODER), ("qwen3", DECODER)])
def test_a_longer_row_has_more_tiles_and_no_larger_ones(name: str, model: Any) -> None:
    short, long = (counted(name, model, length) for length in (512, 1024))
    assert (short.programs, long.programs) == (1, 1)
    for found in (short, long):
        assert found.most_scores <= SCORES_AT_ONCE
        assert found.longest <= LONGEST_AXIS
        assert {kind for kind, _ in found.refused} == TAIL
    assert long.kinds["softmax"] > 1.9 * short.kinds["softmax"]
    # Angles and masks grow with the length, and no mask with its square.
    assert long.constant_bytes < 2.5 * short.constant_bytes


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: mb.add(x=x, y=np.float16(1)), None),
        (lambda x: mb.softmax(x=x, axis=-1), None),
        (lambda x: mb.cast(x=x, dtype="fp32"), "fp32"),
        (lambda x: mb.cast(x=x, dtype="int32"), "int32"),
        (lambda x: mb.gather(x=x, indices=np.array([0, 1], np.int32), axis=3), "no form of gather"),
        (lambda x: mb.reshape(x=x, shape=[1, 1, 2, 1, 2, 4]), "6 axes"),
        (lambda x: mb.tile(x=x, reps=[1, 1, 1, 8192]), "an axis of 32768"),
    ],
)
def test_what_the_engine_is_expected_to_leave_has_a_reason(make: Any, reason: str | None) -> None:
    with Function({"x": mb.placeholder((1, 2, 2, 4), dtype=types.fp16)}, opset_version=TARGET) as function:
        function.set_outputs([make(function.inputs["x"])])
    operation = next(each for each in reversed(function.operations) if each.op_type != "const")
    found = why_not(operation)
    assert found is None if reason is None else reason in str(found)
    assert estimate(function).share == (1.0 if reason is None else 0.0)
