"""How far an implementation may be from the reference: per operation, and over a whole model.

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
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from synapse_host.ops.dtypes import UNIT_ROUNDOFF

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

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


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """What a unit vector of a whole model must keep: the least cosine and the largest error of one component."""

    min_cosine: float
    max_abs_error: float


def _from_cosine(cosine: float) -> EndToEnd:
    """Two unit vectors of this cosine are √(2 - 2·cosine) apart, which bounds every component."""
    return EndToEnd(cosine, math.sqrt(2.0 - 2.0 * cosine))


#: Over a whole encoder, by activation type. Measured: 4e-7 at worst in float32 between the reference, recorded graphs
#: and transformers; cosine 0.9999 and better in bfloat16, 0.999998 and better in float16.
END_TO_END: Mapping[DType, EndToEnd] = MappingProxyType(
    {
        "f32": EndToEnd(min_cosine=0.999999, max_abs_error=2e-6),
        "f16": _from_cosine(0.99999),
        "bf16": _from_cosine(0.9999),
    }
)


def op_bound(op: str, dtype: DType, *, reduction: int = 1, magnitude: float = 1.0) -> float:
    """Largest allowed absolute difference from the reference for one operation."""
    return OP_UNITS[op] * UNIT_ROUNDOFF[dtype] * math.sqrt(reduction) * magnitude
