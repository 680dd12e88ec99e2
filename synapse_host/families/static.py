"""Static embeddings: a table of one vector for each token, and nothing that mixes them before pooling.

The shape of sentence-transformers' ``StaticEmbedding`` and of tables distilled from an encoder: a text is the mean of
its tokens' vectors. There is no layer, so a text costs what reading it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.families.config_fields import whole
from synapse_host.families.pooling import pooled
from synapse_host.ops.tensor_ops import Batch, Cache, Rows, TensorOps

#: The table's name in a checkpoint, as sentence-transformers writes it.
TABLE = "embedding.weight"


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """What of config.json the mathematics needs; ``positions`` are the tokens a text may have, since no table ends."""

    vocab_size: int
    hidden_size: int
    positions: int
    pooling: str
    normalize: bool
    layers: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, pooling: str, normalize: bool) -> StaticConfig:
        """Read config.json; raises ``ValueError`` naming a field that is missing or wrong."""
        return cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=whole(config, "hidden_size"),
            positions=whole(config, "max_position_embeddings"),
            pooling=pooling,
            normalize=normalize,
        )


def stem(ops: TensorOps, cfg: StaticConfig, batch: Batch) -> Rows:
    """Each token's row of the table."""
    return ops.embedding(batch.ids, ops.weight(TABLE, (cfg.vocab_size, cfg.hidden_size)))


def block(ops: TensorOps, cfg: StaticConfig, i: int, x: Rows, batch: Batch, cache: Cache = None) -> Rows:
    """There is none: ``layers`` is 0."""
    raise ValueError(f"a table of static embeddings has no layer {i}")


def head(ops: TensorOps, cfg: StaticConfig, x: Rows, batch: Batch) -> Rows:
    """The text's vector: pooled, and of unit length when the model asks for it."""
    rows = pooled(ops, cfg.pooling, x, batch)
    return ops.l2_normalize(rows) if cfg.normalize else rows
