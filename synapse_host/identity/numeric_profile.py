"""What decides the numbers of a lane, and the two digests made of it.

A fingerprint is minted from the model's digest, its quantisation and everything in the numeric profile; whatever
moves the vector space changes it. Field names and order are those of facts section 3, the construction that of wire
contract section 1. Standard library only, so that a client can check a fingerprint too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from synapse_host.identity.digests import sha256_hex
from synapse_host.values import value_object

Pooling = Literal["mean", "cls", "last_token"]
Normalization = Literal["none", "l2"]
DType = Literal["f16", "f32", "bf16"]
FlashAttention = Literal["disabled", "enabled", "auto"]
ThreadPolicy = Literal["quiet", "balanced", "performance"]

#: The profile's word for each pooling a request may name.
PROFILE_POOLING: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "last": "last_token"}


@value_object
class EngineIdentity:
    """Who computes: the engine's name and version, and the flags of its build that move numbers."""

    engine: str
    version: str
    build_flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def reported_flags(self) -> Mapping[str, str]:
        """The flags its worker reports itself; the precision is the lane's."""
        return {name: value for name, value in self.build_flags.items() if name != "precision"}

    def as_json(self) -> dict[str, Any]:
        """The JSON object, flags sorted by name."""
        return {"engine": self.engine, "version": self.version, "build_flags": dict(sorted(self.build_flags.items()))}


@value_object
class CertifiedShape:
    """The limits a lane is measured under, in tokens and rows; all but the first are fixed (facts section 3)."""

    max_context_tokens: int
    max_batch_tokens: int = 8192
    max_micro_batch_tokens: int = 3072
    max_sequences: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProfile:
    """Everything but the weights that decides a lane's numbers. Optional fields that are None are left out.

    Raises:
        ValueError: a field is blank, not positive or not one of its words; the message names field and value.

    """

    model_digest: str
    quant: str
    engine: EngineIdentity
    sanitized_tokenizer_digest: str
    pooling: Pooling
    normalization: Normalization
    dtype: DType
    flash_attention: FlashAttention = "disabled"
    certified_shape: CertifiedShape
    prompt_template: str | None = None
    prefix_template: str | None = None
    thread_policy: ThreadPolicy = "balanced"
    operation: str | None = None
    input_grammar: str | None = None
    kernel_revision: str | None = None
    rotation: str | None = None
    converted_package_digest: str | None = None
    manifest_profile_digest: str | None = None

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(words)}")
        for owner in (self, self.engine, self.certified_shape):
            _check_filled(owner)


_WORDS: Mapping[str, tuple[str, ...]] = {
    "pooling": get_args(Pooling),
    "normalization": get_args(Normalization),
    "dtype": get_args(DType),
    "flash_attention": get_args(FlashAttention),
    "thread_policy": get_args(ThreadPolicy),
}


def _check_filled(owner: NumericProfile | EngineIdentity | CertifiedShape) -> None:
    for each in fields(owner):
        value = getattr(owner, each.name)
        if value == "" or (isinstance(value, int) and value < 1):
            raise ValueError(f"{each.name} is {value!r}; an identity needs every part filled in, and counts positive")


def compact_json(value: Any) -> str:
    """JSON without blanks, members in the order given: the form the fixed digests are taken over."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def numeric_profile_json(profile: NumericProfile) -> str:
    """The profile as compact JSON in its fixed field order."""
    members = {each.name: _member(getattr(profile, each.name)) for each in fields(profile)}
    return compact_json({name: value for name, value in members.items() if value is not None})


def _member(value: Any) -> Any:
    if isinstance(value, EngineIdentity):
        return value.as_json()
    if isinstance(value, CertifiedShape):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value


def numeric_profile_id(profile: NumericProfile) -> str:
    """SHA-256 hex of the profile's JSON."""
    return sha256_hex(numeric_profile_json(profile).encode())


def fingerprint(profile: NumericProfile) -> str:
    """The strict identity of a vector space: SHA-256 hex of ``[model_digest, quant, numeric_profile_id]``."""
    return sha256_hex(compact_json([profile.model_digest, profile.quant, numeric_profile_id(profile)]).encode())
