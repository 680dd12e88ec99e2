"""config.json of a ModernBERT, in the spelling of the published files and in the newer one with one entry per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.families.config_fields import flag, gelu_form, positive, whole
from synapse_host.families.labels import label_count
from synapse_host.ops.tensor_ops import GeluKind

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
#: What a config that names no base means (the published configuration's defaults).
_GLOBAL_THETA, _LOCAL_THETA = 160_000.0, 10_000.0


@dataclass(frozen=True, slots=True)
class ModernBertConfig:
    """What of config.json the mathematics needs.

    ``local_layers`` says of each layer whether it sees only ``window`` tokens to either side. Fields of the classifier
    are those of a reranker's head.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    local_layers: tuple[bool, ...]
    window: int
    global_theta: float
    local_theta: float
    eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    gelu: GeluKind
    pooling: str
    normalize: bool
    labels: int
    classifier_pooling: str
    classifier_bias: bool
    classifier_gelu: GeluKind

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, pooling: str, normalize: bool) -> ModernBertConfig:
        """Read config.json; raises ``ValueError`` naming a field that is missing, wrong or not supported."""
        heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
        if hidden % (2 * heads):
            raise ValueError(
                f"hidden_size {hidden} gives {heads} heads no even number of features, which rotate in pairs"
            )
        layers = whole(config, "num_hidden_layers")
        far, near = _thetas(config)
        return cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden,
            layers=layers,
            heads=heads,
            intermediate_size=whole(config, "intermediate_size"),
            positions=whole(config, "max_position_embeddings"),
            local_layers=_local_layers(config, layers),
            window=whole(config, "local_attention", 128) // 2,
            global_theta=far,
            local_theta=near,
            eps=positive(config, "norm_eps", 1e-5),
            norm_bias=flag(config, "norm_bias", False),
            attention_bias=flag(config, "attention_bias", False),
            mlp_bias=flag(config, "mlp_bias", False),
            gelu=gelu_form(config, "hidden_activation"),
            pooling=pooling,
            normalize=normalize,
            labels=label_count(config),
            classifier_pooling=_classifier_pooling(config),
            classifier_bias=flag(config, "classifier_bias", False),
            classifier_gelu=gelu_form(config, "classifier_activation"),
        )

    def is_local(self, layer: int) -> bool:
        """True when ``layer`` sees a window only."""
        return self.local_layers[layer]


def _classifier_pooling(config: Mapping[str, Any]) -> str:
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise ValueError(f"classifier_pooling {pooling!r} is not 'cls' or 'mean'")
    return str(pooling)


def _local_layers(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    kinds = config.get("layer_types")
    if kinds is None:
        every = whole(config, "global_attn_every_n_layers", 3)
        return tuple(i % every != 0 for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not {*map(str, kinds)} <= {_GLOBAL, _LOCAL}:
        raise ValueError(f"layer_types {kinds!r:.200} does not say {_GLOBAL} or {_LOCAL} for each of {layers} layers")
    return tuple(kind == _LOCAL for kind in kinds)


def _thetas(config: Mapping[str, Any]) -> tuple[float, float]:
    """The rotary bases of global and of local layers; an older config without a local base uses the global one."""
    named = config.get("rope_parameters") or {}
    if not isinstance(named, Mapping):
        raise ValueError(f"rope_parameters {named!r:.200} is no object with an entry for each kind of layer")
    for entry in (config.get("rope_scaling"), *(named.get(kind) for kind in (_GLOBAL, _LOCAL))):
        _check_plain(entry)
    far = positive(config, "global_rope_theta", _GLOBAL_THETA)
    near = far if config.get("local_rope_theta", 0) is None else positive(config, "local_rope_theta", _LOCAL_THETA)
    return (
        positive(named.get(_GLOBAL) or {}, "rope_theta", far),
        positive(named.get(_LOCAL) or {}, "rope_theta", near),
    )


def _check_plain(entry: Any) -> None:
    if entry is None:
        return
    kind = entry.get("rope_type", entry.get("type", "default")) if isinstance(entry, Mapping) else entry
    if kind != "default":
        raise ValueError(f"rope type {kind!r} is not 'default', the only rotation computed here")
