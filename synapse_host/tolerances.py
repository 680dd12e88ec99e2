"""Every number a measurement is judged by, in one place: operations, whole models, scores, the check at load.

Frozen: ``tests/fixtures/tolerances.json`` holds a copy, and a test fails when one of the two moves alone. A tolerance
is widened by measuring, never because something failed.

One operation may differ from the reference by at most

    units · unit roundoff of the dtype · √reduction · magnitude

where ``reduction`` is the number of terms summed and ``magnitude`` the size of what is summed: max|x| · max|w| for a
product, max|out| where each value is computed alone. 4 units is the bound the project set itself for products
accumulated in float32; normalisations and transcendentals round a few times more and get 8. Operations that only
move values have 0 units: they must be exact in every dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from synapse_host.values import value_object

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

#: Largest relative error of rounding once: half the spacing of 24, 11 and 8 significant bits (IEEE 754; bfloat16 keeps
#: the upper half of a float32).
UNIT_ROUNDOFF: Mapping[DType, float] = MappingProxyType({"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8})

#: Units of roundoff by operation.
OP_UNITS: Mapping[str, float] = MappingProxyType(
    {
        "weight": 0,
        "embedding": 0,
        "positions": 0,
        "table_row": 0,
        "linear": 4,
        "add": 2,
        "mul": 2,
        "layer_norm": 8,
        "rms_norm": 8,
        "add_layer_norm": 8,
        "add_rms_norm": 8,
        "gelu": 8,
        "silu": 8,
        "tanh": 8,
        "relu": 0,
        "geglu": 8,
        "swiglu": 8,
        "split": 0,
        "heads": 0,
        "merge_heads": 0,
        "rope_table": 4,
        "rope": 4,
        "attention": 8,
        "kv_append": 0,
        "first_row": 0,
        "last_row": 0,
        "mean_rows": 4,
        "l2_normalize": 8,
        "logits": 4,
        "argmax": 0,
        "result": 0,
    }
)


def op_bound(op: str, dtype: DType, *, reduction: int = 1, magnitude: float = 1.0) -> float:
    """Largest allowed absolute difference from the reference for one operation."""
    return OP_UNITS[op] * UNIT_ROUNDOFF[dtype] * math.sqrt(reduction) * magnitude


@value_object
class EndToEnd:
    """What a unit vector of a whole model must keep: the least cosine and the largest error of one component."""

    min_cosine: float
    max_abs_error: float


def distance_of(cosine: float) -> float:
    """How far apart two unit vectors of this cosine are, √(2 - 2·cosine), which bounds every component."""
    return math.sqrt(2.0 - 2.0 * cosine)


#: Over a whole encoder, by activation type. Measured: 4e-7 at worst in float32 between the reference, recorded graphs
#: and transformers; cosine 0.9999 and better in bfloat16, 0.999998 and better in float16.
END_TO_END: Mapping[DType, EndToEnd] = MappingProxyType(
    {
        "f32": EndToEnd(min_cosine=0.999999, max_abs_error=2e-6),
        "f16": EndToEnd(0.99999, distance_of(0.99999)),
        "bf16": EndToEnd(0.9999, distance_of(0.9999)),
    }
)


@value_object
class Floors:
    """Limits of one precision: the smallest cosine, and the smallest cosine on the magnifying model."""

    min_cosine: float
    magnified_min_cosine: float


#: Floors of certification by activation type. f32 is held to rounding; bf16 carries 8 bits, f16 carries 11.
FLOORS: Mapping[DType, Floors] = MappingProxyType(
    {
        "f32": Floors(min_cosine=0.999999, magnified_min_cosine=0.999999),
        "f16": Floors(min_cosine=0.9999, magnified_min_cosine=0.9999),
        "bf16": Floors(min_cosine=0.9995, magnified_min_cosine=0.9995),
    }
)


@value_object
class ScoreLimits:
    """Limits of one precision on scores: errors of the model's own, and the correlation on the magnifying model."""

    max_probability_error: float
    max_logit_error: float
    magnified_min_pearson: float


#: Limits by activation type. Logits are held relative to their size: bf16 cannot say -11.2 to the second decimal.
SCORE_LIMITS: Mapping[DType, ScoreLimits] = MappingProxyType(
    {
        "f32": ScoreLimits(max_probability_error=0.005, max_logit_error=1e-4, magnified_min_pearson=0.999999),
        "f16": ScoreLimits(max_probability_error=0.02, max_logit_error=0.03, magnified_min_pearson=0.9999),
        "bf16": ScoreLimits(max_probability_error=0.02, max_logit_error=0.03, magnified_min_pearson=0.997),
    }
)
#: Floors of every reranker (original facts sections 2.4 and 6).
MIN_PEARSON, MIN_KENDALL_TAU = 0.999, 0.99

#: Largest departure of a unit vector's length from 1 (parity evaluator, original facts section 6).
MAX_NORM_ERROR = 1e-3
#: Probabilities or similarities of the reference closer than this are a tie: their order carries no meaning (the same).
TIE_MARGIN = 0.01
#: Least cosine of the check at load (the same).
SELF_CHECK_MIN_COSINE = 0.999
#: Largest error of a probability in the check at load, for lanes that compute in float32 and for all others (the same).
SELF_CHECK_SCORE_ERROR: Mapping[str, float] = MappingProxyType({"fp32": 0.005, "fp16": 0.02})
