"""Fingerprints: frozen vectors, and no field that does not count."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.numeric_profile import (
    PROFILE_POOLING,
    CertifiedShape,
    EngineIdentity,
    NumericProfile,
    fingerprint,
    numeric_profile_id,
    numeric_profile_json,
)

VECTORS = json.loads((Path(__file__).parents[1] / "fixtures" / "identity_vectors.json").read_text(encoding="utf-8"))

#: Another legal value for every field of a profile.
CHANGES: dict[str, Any] = {
    "model_digest": "9" * 64,
    "quant": "q8_0",
    "engine": EngineIdentity("owned-cpu", "2", {"openvino": "2025.3"}),
    "sanitized_tokenizer_digest": "8" * 64,
    "pooling": "cls",
    "normalization": "none",
    "dtype": "f32",
    "flash_attention": "enabled",
    "certified_shape": CertifiedShape(256),
    "prompt_template": "p",
    "prefix_template": "q",
    "thread_policy": "performance",
    "operation": "embed",
    "input_grammar": "g",
    "kernel_revision": "k2",
    "rotation": "r",
    "converted_package_digest": "7" * 64,
    "manifest_profile_digest": "6" * 64,
}


def base_profile(**changes: Any) -> NumericProfile:
    fields: dict[str, Any] = {
        "model_digest": "1" * 64,
        "quant": "none",
        "engine": EngineIdentity("owned-cpu", "1", {"openvino": "2025.3"}),
        "sanitized_tokenizer_digest": "2" * 64,
        "pooling": "mean",
        "normalization": "l2",
        "dtype": "bf16",
        "certified_shape": CertifiedShape(512),
        "kernel_revision": "k1",
    }
    return NumericProfile(**(fields | changes))


def profile_of(inputs: dict[str, Any]) -> NumericProfile:
    parts = dict(inputs)
    parts["engine"] = EngineIdentity(**parts["engine"])
    parts["certified_shape"] = CertifiedShape(**parts["certified_shape"])
    return NumericProfile(**parts)


@pytest.mark.parametrize("vector", VECTORS["numeric_profiles"], ids=lambda vector: vector["name"])
def test_frozen_numeric_profiles(vector: dict[str, Any]) -> None:
    profile = profile_of(vector["profile"])
    assert numeric_profile_json(profile) == vector["json"]
    assert numeric_profile_id(profile) == vector["numeric_profile_id"]
    assert fingerprint(profile) == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["numeric_profiles"], ids=lambda vector: vector["name"])
def test_the_vectors_themselves_follow_the_construction(vector: dict[str, Any]) -> None:
    digest = hashlib.sha256(vector["json"].encode()).hexdigest()
    whole = f'["{vector["profile"]["model_digest"]}","{vector["profile"]["quant"]}","{digest}"]'
    assert digest == vector["numeric_profile_id"]
    assert hashlib.sha256(whole.encode()).hexdigest() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["canonical_json"], ids=lambda vector: vector["name"])
def test_frozen_canonical_json(vector: dict[str, Any]) -> None:
    written = canonical_json(vector["value"], allow_floats=vector["allow_floats"])
    assert written.decode() == vector["canonical"]
    assert hashlib.sha256(written).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(NumericProfile)])
def test_changing_a_single_field_changes_the_fingerprint(field: str) -> None:
    base = base_profile()
    changed = dataclasses.replace(base, **{field: CHANGES[field]})
    assert getattr(changed, field) != getattr(base, field)
    assert fingerprint(changed) != fingerprint(base)
    assert numeric_profile_id(changed) != numeric_profile_id(base)


@pytest.mark.parametrize(
    "engine",
    [
        EngineIdentity("owned-cpu2", "1", {"openvino": "2025.3"}),
        EngineIdentity("owned-cpu", "1", {"openvino": "2025.4"}),
        EngineIdentity("owned-cpu", "1", {"openvino": "2025.3", "isa": "avx2"}),
        EngineIdentity("owned-cpu", "1"),
    ],
)
def test_changing_any_part_of_the_engine_changes_the_fingerprint(engine: EngineIdentity) -> None:
    assert fingerprint(base_profile(engine=engine)) != fingerprint(base_profile())


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(CertifiedShape)])
def test_changing_any_limit_of_the_shape_changes_the_fingerprint(field: str) -> None:
    shape = dataclasses.replace(CertifiedShape(512), **{field: 17})
    assert fingerprint(base_profile(certified_shape=shape)) != fingerprint(base_profile())


def test_an_optional_field_is_left_out_not_null_and_fields_keep_their_order() -> None:
    written = json.loads(numeric_profile_json(base_profile()))
    assert list(written) == [
        "model_digest", "quant", "engine", "sanitized_tokenizer_digest", "pooling", "normalization", "dtype",
        "flash_attention", "certified_shape", "thread_policy", "kernel_revision",
    ]  # fmt: skip
    everything = dataclasses.replace(base_profile(), **CHANGES)
    assert list(json.loads(numeric_profile_json(everything))) == list(CHANGES)


def test_the_fixed_choices_are_the_defaults() -> None:
    profile = base_profile()
    assert (profile.flash_attention, profile.thread_policy) == ("disabled", "balanced")
    assert profile.certified_shape == CertifiedShape(512, 8192, 3072, 64)


def test_the_order_of_build_flags_does_not_show() -> None:
    one = EngineIdentity("e", "1", {"a": "1", "b": "2"})
    two = EngineIdentity("e", "1", {"b": "2", "a": "1"})
    assert fingerprint(base_profile(engine=one)) == fingerprint(base_profile(engine=two))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pooling": "last"}, "pooling is 'last'; use one of mean, cls, last_token"),
        ({"normalization": "l1"}, "normalization is 'l1'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"flash_attention": "on"}, "flash_attention is 'on'"),
        ({"thread_policy": "loud"}, "thread_policy is 'loud'"),
        ({"model_digest": ""}, "model_digest is ''"),
        ({"kernel_revision": ""}, "kernel_revision is ''"),
        ({"engine": EngineIdentity("e", "")}, "version is ''"),
        ({"certified_shape": CertifiedShape(0)}, "max_context_tokens is 0"),
    ],
)
def test_a_profile_with_a_blank_or_unknown_part_cannot_be_made(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        base_profile(**changes)
    assert fault in str(caught.value)


def test_every_pooling_of_a_request_has_a_word_in_the_profile() -> None:
    assert {name: base_profile(pooling=word).pooling for name, word in PROFILE_POOLING.items()} == {
        "mean": "mean",
        "cls": "cls",
        "last": "last_token",
    }
