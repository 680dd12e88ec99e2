"""The operations of the Neural Engine plugin's programs at the shapes of the catalog's models.

How many, of which kind, where they are expected to run, and how large they get. Needs no Neural Engine and asks none.

    python -m benchmarks.ane_census [gte-modernbert-base ...] [--lengths 128 1024 8192] [--kinds]

Layers, heads and lengths are those of the models; rows are narrower, which adds no operation and leaves none out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_ane.attention_program import SCORES_AT_ONCE
from synapse_ane.census import Census, CensusModel, census
from synapse_ane.placement_rules import LONGEST_AXIS
from synapse_ane.shape_ladder import RUNGS

from synapse_host.hookspecs import Pooling
from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.testing.models.tiny_cross_encoders import TinyModernBertReranker
from synapse_host.testing.models.tiny_models import TinyModel
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3

MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Counted:
    """A model of the catalog's layers and heads, and the width of its rows as published."""

    family: str
    tiny: TinyModel
    width: int
    pooling: Pooling
    rerank: bool = False


_GTE = TinyModernBert(1, 48, 22, 12, 64, 97, MAX_TOKENS, span=128)
_QWEN3 = TinyQwen3(1, 32, 28, 16, 8, 8, 48, 97, MAX_TOKENS, tied=True)
_RERANKER = TinyModernBertReranker(_GTE, "mean")
MODELS: Mapping[str, Counted] = {
    "gte-modernbert-base": Counted("modernbert", _GTE, 768, "cls"),
    "gte-reranker-modernbert-base": Counted("modernbert", _RERANKER, 768, "cls", rerank=True),
    "qwen3-embedding-0.6b": Counted("qwen3", _QWEN3, 1024, "last"),
}


class Weights:
    """A checkpoint in memory, names without their publisher's prefix."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}

    def tensor(self, name: str) -> Any:
        return self._tensors[name]


def counted(name: str, length: int) -> Census:
    """The census of one model at one length."""
    model = MODELS[name]
    family = FAMILIES[model.family]
    config = family.config(model.tiny.config(), pooling=model.pooling, normalize=not model.rerank)
    head = family.score if model.rerank else family.head
    assert head is not None
    subject = CensusModel(family, config, head, model.width)
    return census(subject, Weights(model.tiny.tensors()), length, max_tokens=MAX_TOKENS)


def row(name: str, found: Census) -> str:
    """One line of the table."""
    cells = (
        name,
        f"{found.length:,}",
        f"{found.programs}",
        f"{found.operations:,}",
        f"{found.share:.4f}",
        f"{found.longest:,}",
        f"{found.most_scores:,}",
        f"{found.constant_bytes / 2**20:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and what is past a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all of them")
    parser.add_argument("--lengths", nargs="*", type=int, choices=RUNGS, default=RUNGS)
    parser.add_argument("--kinds", action="store_true", help="also print the kinds of operation, and what is refused")
    options = parser.parse_args()
    print("| model | length | programs | operations | share expected | longest axis | most scores | constants, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models or MODELS:
        for length in options.lengths:
            found = counted(name, length)
            print(row(name, found), flush=True)
            if options.kinds:
                print("  " + ", ".join(f"{kind} {count}" for kind, count in found.kinds.most_common()))
                print("  elsewhere: " + ", ".join(f"{kind} {n} ({why})" for (kind, why), n in found.refused.items()))
            if found.longest > LONGEST_AXIS or found.most_scores > SCORES_AT_ONCE:
                raise SystemExit(f"{name} at {length} passes a limit of the engine")


if __name__ == "__main__":
    main()
