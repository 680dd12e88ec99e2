"""The floors a lane must reach to be certified, and the judgement against them. Pure.

The two floors of the contract (mean cosine, worst-decile overlap) come from the settings. They are wide enough for any
honest precision, so a wrong epsilon or activation passes them; the floors per dtype below are what catches those. They
are set about four times looser than the largest error measured on the reference models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from synapse_host.certification.metrics import Agreement
from synapse_host.hookspecs import DType


@dataclass(frozen=True, slots=True)
class Floors:
    """Limits of one precision: the smallest cosine, and the smallest cosine on the magnifying model."""

    min_cosine: float
    magnified_min_cosine: float


#: Floors by activation type. f32 is held to rounding; bf16 carries 8 bits, f16 carries 11.
FLOORS: Mapping[DType, Floors] = {
    "f32": Floors(min_cosine=0.999999, magnified_min_cosine=0.999999),
    "f16": Floors(min_cosine=0.9999, magnified_min_cosine=0.9999),
    "bf16": Floors(min_cosine=0.9995, magnified_min_cosine=0.9995),
}

#: Largest departure of a unit vector's length from 1 (parity evaluator, original facts section 6).
MAX_NORM_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class Gates:
    """What the settings ask of every lane."""

    mean_cosine: float
    decile_overlap: float


def failures(dtype: DType, gates: Gates, texts: Agreement, magnified: Agreement) -> list[str]:
    """Every floor that was missed, as a sentence with both numbers; an empty list certifies."""
    floors = FLOORS[dtype]
    checks = (
        ("mean cosine", texts.mean_cosine, gates.mean_cosine),
        ("worst-decile rank overlap", texts.worst_decile_overlap, gates.decile_overlap),
        (f"min cosine in {dtype}", texts.min_cosine, floors.min_cosine),
        (f"min cosine on the magnifying model in {dtype}", magnified.min_cosine, floors.magnified_min_cosine),
    )
    missed = [f"{name} is {value:.7f}, below {floor}" for name, value, floor in checks if not value >= floor]
    if not texts.max_norm_error <= MAX_NORM_ERROR:
        missed.append(f"vector length is off by {texts.max_norm_error:.2e}, above {MAX_NORM_ERROR}")
    return missed
