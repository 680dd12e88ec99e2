"""XLM-RoBERTa encoders: bge-m3, bge-reranker and multilingual-e5 shapes.

The mathematics is BERT's. What differs is data: the position table begins with a row for padding and unused rows before
it, so the first token of a text stands at row ``pad_token_id + 1`` and a table of 8,194 rows takes 8,192 tokens. The
head of a reranker is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synapse_host.families.bert import BertConfig, dense
from synapse_host.families.labels import require_one_label
from synapse_host.ops.tensor_ops import Batch, Rows, TensorOps

#: The id of ``<pad>`` in every published vocabulary, for a config that does not repeat it.
_PAD_ID = 1


def read_config(config: Mapping[str, Any], *, pooling: str, normalize: bool) -> BertConfig:
    """Read config.json; raises ``ValueError`` naming a field that is missing, wrong or not supported.

    transformers gives a padding id inside a text the position of padding; here every counted token has its own.
    """
    pad = config.get("pad_token_id", _PAD_ID)
    if type(pad) is not int or pad < 0:
        raise ValueError(f"pad_token_id {pad!r} is not a whole number from 0 up")
    return BertConfig.from_config(config, pooling=pooling, normalize=normalize, first_position=pad + 1)


def score(ops: TensorOps, cfg: BertConfig, x: Rows, batch: Batch) -> Rows:
    """The logit of a sequence classifier with one label: first row, dense, tanh, projection.

    Raises ``ValueError`` when config.json names another number of labels.
    """
    require_one_label(cfg.labels)
    c = cfg.hidden_size
    inner = ops.tanh(dense(ops, "classifier.dense", ops.first_row(x, batch), c, c))
    return dense(ops, "classifier.out_proj", inner, 1, c)
