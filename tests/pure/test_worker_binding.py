"""Which engines must present the digests the host expects (original facts 1.1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synapse_host.worker_protocol.binding import NEVER_BOUND, bound_expectations
from synapse_host.worker_protocol.faults import HandshakeRefused
from synapse_host.worker_protocol.handshake import check_hello

BOUND = ["owned-cuda", "owned-vulkan", "ane-direct-worker", "owned-cpu", "owned-metal", "reference", None]


def greet(engine: str | None, *, claimed: str, **presented: Any) -> Any:
    """The HELLO of a worker that calls itself ``claimed``, judged by a host that started ``engine``."""
    identity = {"engine": claimed, "version": "1", "build_flags": {}}
    hello = {"v": 3, "nonce": "n", "engine": identity, "pid": 1, "max_frame": 4096, **presented}
    manifest, kernel = bound_expectations(engine, "aa", "r1")
    return check_hello(
        json.dumps(hello).encode(),
        nonce="n",
        host_max_frame=4096,
        expected_manifest=manifest,
        expected_kernel=kernel,
    )


@pytest.mark.parametrize("engine", BOUND)
@pytest.mark.parametrize(
    ("presented", "code"),
    [
        ({}, "manifest_mismatch"),
        ({"kernel_revision": "r1"}, "manifest_mismatch"),
        ({"manifest_digest": "bb", "kernel_revision": "r0"}, "manifest_mismatch"),
        ({"manifest_digest": "aa"}, "kernel_revision_mismatch"),
        ({"manifest_digest": "aa", "kernel_revision": "r0"}, "kernel_revision_mismatch"),
    ],
    ids=str,
)
def test_a_bound_engine_must_present_both_and_nothing_is_a_mismatch(
    engine: str | None, presented: dict[str, str], code: str
) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        greet(engine, claimed=engine or "x", **presented)
    assert refused.value.code == code
    assert greet(engine, claimed=engine or "x", manifest_digest="aa", kernel_revision="r1")


@pytest.mark.parametrize("engine", ["llama.cpp-worker", "ane-coreml-worker", "owned-metal-decode"])
def test_the_engines_that_are_never_bound_may_present_anything(engine: str) -> None:
    assert engine in NEVER_BOUND
    assert greet(engine, claimed=engine)
    assert greet(engine, claimed=engine, manifest_digest="bb", kernel_revision="r0")


def test_a_worker_that_takes_another_name_is_bound_all_the_same() -> None:
    with pytest.raises(HandshakeRefused) as refused:
        greet("owned-cuda", claimed="llama.cpp-worker")
    assert refused.value.code == "manifest_mismatch"


def test_no_expectation_is_no_check() -> None:
    assert bound_expectations("owned-cuda", None, None) == (None, None)
    assert bound_expectations("owned-cuda", None, "r1") == (None, "r1")
