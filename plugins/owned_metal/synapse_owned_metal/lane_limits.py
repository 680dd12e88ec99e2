"""Sets MLX's memory limits from what one lane needs; the process of a worker serves one lane."""

from __future__ import annotations

from typing import Any

from synapse_host.owned_engine.engine import ModelSettings, model_config
from synapse_host.owned_engine.greedy import PIECE
from synapse_owned_metal.attention import tile_length
from synapse_owned_metal.bucket_ladder import TOKEN_BUDGET, MetalLadder
from synapse_owned_metal.device import Device
from synapse_owned_metal.memory_plan import CallSize, MemoryPlan, memory_plan
from synapse_owned_metal.runtime import mx

#: What a device that says how much memory it works well with calls it.
_WORKING_SET = "max_recommended_working_set_size"


def limit_lane(weight_bytes: int, settings: ModelSettings, device: Device) -> MemoryPlan:
    """Hold MLX to the budget of this lane and return it; raises ``MemoryError`` when it does not fit the device."""
    config: Any = model_config(settings, "last", False)
    call = _decoding_call(settings, config) if settings.task == "generate" else _largest_call(settings, config)
    plan = memory_plan(weight_bytes, call, device_limit=_working_set(device))
    mx.set_memory_limit(plan.limit)
    mx.set_cache_limit(plan.cache)
    return plan


def _largest_call(settings: ModelSettings, config: Any) -> CallSize:
    tokens = max(TOKEN_BUDGET, settings.max_tokens)
    if not config.layers:
        # A table of tokens: nothing attends, and nothing is wider than its rows.
        return CallSize(tokens, config.hidden_size, config.hidden_size, 0)
    ladder = MetalLadder(settings.max_tokens)
    scores = max(ladder.rows_per_call(rung) * tile_length(rung) * rung for rung in ladder.buckets())
    return CallSize(tokens, _width(config), config.intermediate_size, config.heads * scores)


def _decoding_call(settings: ModelSettings, config: Any) -> CallSize:
    """A piece of a prompt against the longest cache; the cache itself is held beside it."""
    kept = settings.max_tokens * config.layers * 2 * config.kv_heads * config.head_dim
    scores = config.heads * min(PIECE, tile_length(settings.max_tokens)) * settings.max_tokens
    tokens = min(PIECE, settings.max_tokens)
    return CallSize(tokens, _width(config), config.intermediate_size, scores + kept)


def _width(config: Any) -> int:
    """Features of the widest rows beside the feed-forward's: queries may be wider than hidden rows."""
    heads: int = config.heads * getattr(config, "head_dim", 0)
    return max(int(config.hidden_size), heads)


def _working_set(device: Device) -> int | None:
    if device.kind != "metal":
        return None
    size = mx.device_info().get(_WORKING_SET)
    return int(size) if size else None
