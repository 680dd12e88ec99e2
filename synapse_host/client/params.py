"""Request parameters from the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def batch_params(
    model: str | None, ids: Sequence[str], texts: Sequence[str], constraints: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of embed.batch."""
    items = [{"id": item, "text": text} for item, text in zip(ids, texts, strict=True)]
    return {"items": items, **with_model(model, constraints)}


def with_model(model: str | None, constraints: Mapping[str, Any]) -> dict[str, Any]:
    """The constraints, and the model where one is named."""
    return {**given(model=model), **constraints}


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None; an absent field and null are different things to the host."""
    return {name: value for name, value in values.items() if value is not None}
