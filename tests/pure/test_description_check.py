from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from synapse_host.backends.description_check import DescriptionFault, check_description, check_evidence
from synapse_host.backends.known import ENGINE_OWNERS
from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, PackedSupport
from synapse_host.worker_protocol.binding import NEVER_BOUND

GOOD = BackendDescription(
    backend="mine",
    engine="my-engine",
    engine_version="1.0",
    build_flags={"precision": "f32"},
    tasks=("embed",),
    model_formats=("safetensors-package",),
    families=("bert",),
    dtypes=("f32",),
    device_class="cpu",
    platforms=("linux",),
    extra="",
    owned=False,
    abort_capable=False,
)
REFUSED = CapabilityEvidence("refused", {"api": 2}, {"api": 1}, "device_below_floor", "api_too_old", "update it")


def test_a_sound_description_passes_unchanged() -> None:
    assert check_description(GOOD, "mine") is GOOD


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", ""),
        ("engine_version", 1),
        ("tasks", ("embed", "dance")),
        ("tasks", ()),
        ("tasks", ("embed", "embed")),
        ("tasks", "embed"),
        ("dtypes", ("f64",)),
        ("model_formats", ("",)),
        ("families", "bert"),
        ("platforms", (3,)),
        ("owned", 1),
        ("abort_capable", "no"),
        ("batch_invariant", 1),
        ("build_flags", {"threads": 2}),
        ("build_flags", ["precision"]),
        ("device_class", "tpu"),
        ("extra", None),
        ("kernel_revision", ""),
        ("manifest_digest", b"00"),
        ("recommended_batch", (8, 3072)),
        ("recommended_batch", BatchPolicy(0, 3072)),
        ("packed", {"widths": (256,), "max_rows": 8}),
        ("packed", PackedSupport((), 8)),
        ("packed", PackedSupport((256, 0), 8)),
        ("packed", PackedSupport((256,), True)),
        ("packed", PackedSupport(256, 8)),  # type: ignore[arg-type]
        ("plugin_api", True),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_with_its_value(field: str, value: Any) -> None:
    with pytest.raises(DescriptionFault, match=field) as refusal:
        check_description(replace(GOOD, **{field: value}), "mine")
    assert repr(value)[:20] in str(refusal.value)


OWNED = replace(GOOD, owned=True, kernel_revision="aa", manifest_digest="bb")


@pytest.mark.parametrize("field", ["kernel_revision", "manifest_digest"])
def test_an_owned_engine_without_what_its_workers_must_prove_is_refused(field: str) -> None:
    assert check_description(OWNED, "mine") is OWNED
    with pytest.raises(DescriptionFault, match=f"{field} .*owned engine"):
        check_description(replace(OWNED, **{field: None}), "mine")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["llama.cpp-worker", "ane-coreml-worker", "owned-metal-decode", "owned-cpu"])
def test_the_engine_of_another_backend_is_no_name_for_one_s_own(engine: str) -> None:
    with pytest.raises(DescriptionFault, match=f"{engine}.*which is the engine of backend"):
        check_description(replace(OWNED, engine=engine), "mine")


def test_a_name_that_frees_workers_from_proof_belongs_to_one_backend() -> None:
    """Or any plugin could take it, and its kernels could be swapped unseen."""
    assert set(ENGINE_OWNERS) >= NEVER_BOUND


def test_a_description_of_another_backend_is_refused() -> None:
    with pytest.raises(DescriptionFault, match="'mine' describes itself as 'yours'"):
        check_description(replace(GOOD, backend="yours"), "mine")


@pytest.mark.parametrize("value", [None, {}, "cpu", REFUSED])
def test_something_else_than_a_description_is_refused(value: object) -> None:
    with pytest.raises(DescriptionFault, match="return a BackendDescription"):
        check_description(value, "mine")


def test_a_refusal_keeps_all_it_says() -> None:
    assert check_evidence(REFUSED, "mine") is REFUSED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "fine"),
        ("required", None),
        ("observed", {1: "x"}),
        ("reason", None),
        ("reason", "too_slow"),
        ("reason_detail", 7),
        ("message", None),
        ("message", ""),
    ],
)
def test_a_refusal_without_its_reason_or_remedy_is_refused(field: str, value: Any) -> None:
    with pytest.raises(DescriptionFault, match=field):
        check_evidence(replace(REFUSED, **{field: value}), "mine")


def test_evidence_that_is_ok_gives_no_reason() -> None:
    with pytest.raises(DescriptionFault, match="reason"):
        check_evidence(CapabilityEvidence("ok", {}, {}, "device_missing"), "mine")


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(DescriptionFault) as refusal:
        check_description("x" * 100_000, "mine")
    assert len(str(refusal.value)) < 400
