"""The model families the owned engine runs: an explicit table from a family's name to its functions and config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from synapse_host.families import bert, modernbert, qwen3, static, xlm_roberta
from synapse_host.families.labels import require_one_label
from synapse_host.families.modernbert_config import ModernBertConfig
from synapse_host.hookspecs import PluginError

#: The only format an owned engine reads.
MODEL_FORMAT = "safetensors-package"


class FamilyConfig(Protocol):
    """What the engine itself reads of a family's config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def positions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: the functions of its mathematics and how its config is read.

    ``windowed`` says that some layers attend locally, so that the attention regime makes different graphs. ``score``
    (ops, config, x, batch) is the head of a reranker: pooled rows [B, 1, n], one for each sequence; without it the
    family does not rerank. ``read_scores`` makes one score of the n numbers, float32 [B, n] to [B], where n is not 1.
    ``check_scoring`` raises ``ValueError`` for a config of no reranker, before a tensor is looked for.
    ``segmented`` says that the two texts of a pair are told apart by ``Batch.kinds``. ``next_token`` (ops, config, x,
    batch) is the head of a decoder: the likeliest token after each row, i32[B, 1]; without it the family does not
    generate.
    """

    name: str
    config: Callable[..., FamilyConfig]
    stem: Callable[..., Any]
    block: Callable[..., Any]
    head: Callable[..., Any]
    windowed: bool = False
    score: Callable[..., Any] | None = None
    read_scores: Callable[[Any], Any] | None = None
    segmented: bool = False
    check_scoring: Callable[[Any], None] | None = None
    next_token: Callable[..., Any] | None = None


def _one_label(config: Any) -> None:
    require_one_label(config.labels)


FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        "bert",
        bert.BertConfig.from_config,
        bert.stem,
        bert.block,
        bert.head,
        score=bert.score,
        check_scoring=_one_label,
        segmented=True,
    ),
    "xlm-roberta": Family(
        "xlm-roberta",
        xlm_roberta.read_config,
        bert.stem,
        bert.block,
        bert.head,
        score=xlm_roberta.score,
        check_scoring=_one_label,
    ),
    "modernbert": Family(
        "modernbert",
        ModernBertConfig.from_config,
        modernbert.stem,
        modernbert.block,
        modernbert.head,
        windowed=True,
        score=modernbert.score,
        check_scoring=_one_label,
    ),
    "qwen3": Family(
        "qwen3",
        qwen3.Qwen3Config.from_config,
        qwen3.stem,
        qwen3.block,
        qwen3.head,
        score=qwen3.score,
        check_scoring=qwen3.check_readout,
        read_scores=qwen3.read_scores,
        next_token=qwen3.next_token,
    ),
    "static": Family("static", static.StaticConfig.from_config, static.stem, static.block, static.head),
}


def family_named(name: str) -> Family:
    """The family called ``name``; refuses any other with ``model_unsupported``, naming those there are."""
    family = FAMILIES.get(name)
    if family is None:
        raise PluginError("model_unsupported", f"model family {name!r} is not one of {', '.join(sorted(FAMILIES))}")
    return family
