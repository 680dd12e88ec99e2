from __future__ import annotations

import json
from typing import Any

import pytest

from synapse_host.worker_protocol.faults import HandshakeRefused
from synapse_host.worker_protocol.handshake import SMALLEST_MAX_FRAME, check_hello

NONCE = "00ff00ff00ff00ff"
HELLO: dict[str, Any] = {
    "v": 3,
    "nonce": NONCE,
    "engine": {"engine": "owned-cpu", "version": "1.0", "build_flags": {"precision": "f32"}},
    "pid": 4,
    "max_frame": 1 << 20,
    "manifest_digest": "aa",
    "kernel_revision": "r1",
}


def _check(changes: dict[str, Any], *, manifest: str | None = None, kernel: str | None = None) -> Any:
    wire = {name: value for name, value in (HELLO | changes).items() if value is not ...}
    payload = json.dumps(wire).encode()
    return check_hello(payload, nonce=NONCE, host_max_frame=1 << 26, expected_manifest=manifest, expected_kernel=kernel)


def test_a_good_hello_is_acknowledged() -> None:
    hello, ack = _check({}, manifest="aa", kernel="r1")
    assert hello.engine["engine"] == "owned-cpu"
    assert (ack.v, ack.accept, ack.max_frame) == (3, True, 1 << 20)


@pytest.mark.parametrize(("worker", "agreed"), [(1 << 20, 1 << 20), (1 << 26, 1 << 26), (1 << 30, 1 << 26)])
def test_the_smaller_frame_size_is_agreed(worker: int, agreed: int) -> None:
    assert _check({"max_frame": worker})[1].max_frame == agreed


@pytest.mark.parametrize("version", [2, 4, 3.0, "3", True, None, [3], ...])
def test_only_the_integer_three_is_accepted(version: Any) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        _check({"v": version})
    assert refused.value.code == "version_mismatch"
    assert repr(None if version is ... else version) in str(refused.value)


def test_version_is_judged_before_anything_else() -> None:
    with pytest.raises(HandshakeRefused) as refused:
        check_hello(
            b'{"v":2,"old_field":1}', nonce=NONCE, host_max_frame=1, expected_manifest=None, expected_kernel=None
        )
    assert refused.value.code == "version_mismatch"


@pytest.mark.parametrize("nonce", ["", "00ff00ff00ff00fe", NONCE.upper()])
def test_another_launch_is_refused(nonce: str) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        _check({"nonce": nonce})
    assert refused.value.code == "nonce_mismatch"
    assert repr(nonce) in str(refused.value)


@pytest.mark.parametrize("value", ["bb", ...])
def test_manifest_is_judged_before_kernels(value: Any) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        _check({"manifest_digest": value, "kernel_revision": "r0"}, manifest="aa", kernel="r1")
    assert refused.value.code == "manifest_mismatch"


@pytest.mark.parametrize("value", ["r0", ...])
def test_another_kernel_revision_is_refused(value: Any) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        _check({"kernel_revision": value}, manifest="aa", kernel="r1")
    assert refused.value.code == "kernel_revision_mismatch"


FLAGS = {"device": "Card", "driver": "1.0"}


def _check_flags(told: dict[str, str], expected: dict[str, str]) -> Any:
    wire = {**HELLO, "engine": {"engine": "owned-vulkan", "version": "1", "build_flags": told}}
    return check_hello(
        json.dumps(wire).encode(),
        nonce=NONCE,
        host_max_frame=1 << 26,
        expected_manifest=None,
        expected_kernel=None,
        expected_flags=expected,
    )


@pytest.mark.parametrize(
    ("told", "actual"), [({**FLAGS, "driver": "1.1"}, "driver=1.1"), ({"device": "Card"}, "driver=None")]
)
def test_another_driver_is_refused_by_the_name_of_its_flag(told: dict[str, str], actual: str) -> None:
    with pytest.raises(HandshakeRefused, match="build flag driver") as refused:
        _check_flags(told, FLAGS)
    assert refused.value.code == "kernel_revision_mismatch"
    assert (refused.value.expected, refused.value.actual) == ("driver=1.0", actual)


def test_flags_beside_the_expected_ones_are_the_workers_own_business() -> None:
    assert _check_flags({**FLAGS, "more": "x"}, FLAGS)[1].accept
    assert _check_flags(FLAGS, {})[1].accept


def test_without_expectation_nothing_is_compared() -> None:
    hello, _ = _check({"manifest_digest": "zz", "kernel_revision": ...})
    assert hello.kernel_revision is None


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "4"},
        {"max_frame": SMALLEST_MAX_FRAME - 1},
        {"max_frame": ...},
        {"engine": ...},
        {"engine": {}},
        {"engine": {"engine": "", "version": "1", "build_flags": {}}},
        {"engine": {"engine": "e", "version": 1, "build_flags": {}}},
        {"engine": {"engine": "e", "version": "1", "build_flags": {"a": 1}}},
        {"engine": {"engine": "e", "version": "1"}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_malformed_hello_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        _check(changes)
    assert refused.value.code == "malformed_hello"


@pytest.mark.parametrize("payload", [b"", b"null", b"GET / HTTP/1.1", b"\xff"])
def test_what_is_no_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        check_hello(payload, nonce=NONCE, host_max_frame=1, expected_manifest=None, expected_kernel=None)
    assert refused.value.code == "malformed_hello"
