"""Fields of config.json, read for a family: present, of the right type and in range.

Each reader raises ``ValueError`` naming the field and its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from synapse_host.ops.tensor_ops import GeluKind

#: Names of the activation in config.json and the form of GELU each stands for.
_GELU_FORMS: Mapping[str, GeluKind] = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def whole(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A whole number from 1 up."""
    value = config.get(field)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"config.json has no {field!r}, which this model needs")
    if type(value) is not int or value < 1:
        raise ValueError(f"{field} {value!r} is not a whole number from 1 up")
    return value


def positive(config: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """A finite number above 0."""
    value = config.get(field, default)
    if value is None:
        raise ValueError(f"config.json has no {field!r}, which this model needs")
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < math.inf:
        raise ValueError(f"{field} {value!r} is not a number above 0")
    return float(value)


def flag(config: Mapping[str, Any], field: str, default: bool) -> bool:
    """True or false."""
    value = config.get(field, default)
    if type(value) is not bool:
        raise ValueError(f"{field} {value!r} is not true or false")
    return value


def require(config: Mapping[str, Any], field: str, supported: object) -> None:
    """Refuse every value but ``supported``, which is also what a missing field means."""
    value = config.get(field, supported)
    if value != supported:
        raise ValueError(f"{field} {value!r} is not {supported!r}, the only form computed here")


def gelu_form(config: Mapping[str, Any], field: str) -> GeluKind:
    """The form of GELU that ``field`` names; the exact one when absent."""
    act = config.get(field, "gelu")
    form = _GELU_FORMS.get(act) if isinstance(act, str) else None
    if form is None:
        raise ValueError(f"{field} {act!r} is not one of {', '.join(_GELU_FORMS)}")
    return form
