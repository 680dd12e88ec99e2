"""Holds CuPy's pool to what one lane needs; the process of a worker serves one lane."""

from __future__ import annotations

from math import prod
from typing import Any

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine.engine import ModelSettings, model_config
from synapse_host.owned_engine.greedy import PIECE
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_owned_cuda.device import Device
from synapse_owned_cuda.memory_plan import CallSize, pool_limit

_ITEM_BYTES = {"f32": 4, "f16": 2}


def limit_lane(weights: CheckpointWeights, settings: ModelSettings, device: Device, token_budget: int) -> int:
    """Set the limit of this lane and return it; raises ``PluginError`` with oom when the lane does not fit."""
    size = _ITEM_BYTES[settings.dtype]
    held = sum(prod(weights.entry(name).shape) * size for name in list(weights))
    try:
        limit = pool_limit(held, _call(settings, size, token_budget), free=device.free_memory())
    except MemoryError as full:
        raise PluginError("oom", str(full)) from full
    device.limit_memory(limit)
    return limit


def _call(settings: ModelSettings, size: int, token_budget: int) -> CallSize:
    config: Any = model_config(settings, "last", False)
    if not config.layers:
        # A table of tokens: nothing attends, and nothing is wider than its rows.
        tokens = max(token_budget, settings.max_tokens)
        return CallSize(tokens, config.hidden_size, config.hidden_size, size, 0)
    heads = config.heads * getattr(config, "head_dim", config.hidden_size // config.heads)
    # Cosines and sines of every position a row may have, for the two bases a family may turn by.
    tables = 2 * settings.max_tokens * heads // config.heads * 4
    tokens, kept = max(token_budget, settings.max_tokens), tables
    if settings.task == "generate":
        tokens = min(PIECE, settings.max_tokens)
        # A cache grows by making a larger one beside it; logits are of the whole vocabulary, twice.
        kept += 2 * 2 * settings.max_tokens * config.layers * config.kv_heads * config.head_dim * size
        kept += 3 * 4 * config.vocab_size
    return CallSize(tokens, max(config.hidden_size, heads), config.intermediate_size, size, kept)
