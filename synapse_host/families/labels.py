"""How many labels a classification head has, as config.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Labels of a head whose config.json names none: what the library that writes these files assumes.
_UNSAID = 2


def label_count(config: Mapping[str, Any]) -> int:
    """Labels by ``id2label``, else ``num_labels``, else 2; raises ``ValueError`` for a count that is none."""
    names = config.get("id2label")
    if isinstance(names, Mapping) and names:
        return len(names)
    value = config.get("num_labels", _UNSAID)
    if type(value) is not int or value < 1:
        raise ValueError(f"num_labels {value!r} is not a whole number from 1 up")
    return value


def require_one_label(labels: int) -> None:
    """Refuse a classifier that is no reranker: ``ValueError`` for another number of labels than 1."""
    if labels != 1:
        raise ValueError(f"config.json names {labels} labels and a reranker has 1; use a model that scores pairs")
