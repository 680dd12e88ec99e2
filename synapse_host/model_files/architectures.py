"""config.json read as far as the host needs it: which family computes the model, and its sizes. Pure.

The family reads the rest itself, in the worker. Adding an architecture is one line of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.errors import InvalidRequest

#: ``model_type`` of config.json -> the family that computes it.
FAMILY_OF_MODEL_TYPE: Mapping[str, str] = {
    "bert": "bert",
    "modernbert": "modernbert",
    "qwen3": "qwen3",
    "static": "static",
    "xlm-roberta": "xlm-roberta",
}

#: Types whose first token takes the row after that of padding: ``pad_token_id + 1`` rows of the table hold no token.
OFFSET_POSITIONS = frozenset({"xlm-roberta"})

#: Types that are a table of tokens and no layer over it.
WITHOUT_LAYERS = frozenset({"static"})

#: Largest size a config may state: token ids and positions travel as 32-bit integers.
MAX_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported model: its family and the sizes its weights, vectors and inputs are bound by.

    ``max_positions`` are the tokens a text may have: the rows of the position table that tokens can take.
    """

    family: str
    model_type: str
    hidden_size: int
    layers: int
    vocab_size: int
    max_positions: int


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture a parsed config.json describes.

    Raises:
        InvalidRequest: no family computes its ``model_type`` (details ``architecture``), or a size is missing or no
            positive integer (details ``file`` and ``field``).

    """
    model_type = config.get("model_type")
    family = FAMILY_OF_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        raise _unsupported(model_type, config.get("architectures"))
    return Architecture(
        family=family,
        model_type=model_type,
        hidden_size=_size(config, "hidden_size"),
        layers=0 if model_type in WITHOUT_LAYERS else _size(config, "num_hidden_layers"),
        vocab_size=_size(config, "vocab_size"),
        max_positions=_positions(config, model_type),
    )


def _positions(config: Mapping[str, Any], model_type: str) -> int:
    rows = _size(config, "max_position_embeddings")
    if model_type not in OFFSET_POSITIONS:
        return rows
    padding = config.get("pad_token_id", 1)
    if type(padding) is not int or not 0 <= padding < rows - 1:
        raise _wrong_field("pad_token_id", padding, f"an integer from 0 to {rows - 2}, below the position table")
    return rows - padding - 1


def _unsupported(model_type: Any, classes: Any) -> InvalidRequest:
    named = f"model_type {model_type!r}" if model_type is not None else f"no model_type (architectures: {classes!r})"
    supported = ", ".join(sorted(FAMILY_OF_MODEL_TYPE))
    return InvalidRequest(
        f"config.json names {named}, which no model family here computes; load a model of type {supported}",
        details={"architecture": model_type, "supported": sorted(FAMILY_OF_MODEL_TYPE)},
    )


def _size(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise _wrong_field(field, value, f"an integer from 1 to {MAX_SIZE}")
    return value


def _wrong_field(field: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"config.json has {field} {value!r:.80}, which must be {wanted}; restore the published file",
        details={"file": "config.json", "field": field},
    )
