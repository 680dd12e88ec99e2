"""Whether the host accepts a worker's HELLO. Pure; the clock and the socket are the launcher's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synapse_host.worker_protocol import codec
from synapse_host.worker_protocol.faults import HandshakeRefused, ProtocolFault
from synapse_host.worker_protocol.messages import PROTOCOL_VERSION, SMALLEST_MAX_FRAME, Hello, HelloAck


def check_hello(
    payload: bytes,
    *,
    nonce: str,
    host_max_frame: int,
    expected_manifest: str | None,
    expected_kernel: str | None,
    expected_flags: Mapping[str, str] | None = None,
) -> tuple[Hello, HelloAck]:
    """The accepted HELLO and the answer to it, whose ``max_frame`` is the smaller of both sides'.

    The version is judged before anything else, so that a worker of another version is refused as that. An
    expectation of None is not checked; a worker that leaves an expected value out does not match it. Of the build flags
    those that are expected must be equal; what a worker says beside them is not looked at.

    Raises:
        HandshakeRefused: with the code of the first rule the frame breaks.

    """
    wire = _read_object(payload)
    _check_version(wire)
    hello = _read_fields(wire)
    if hello.nonce != nonce:
        raise HandshakeRefused(
            "nonce_mismatch",
            f"HELLO nonce {codec.shown(hello.nonce)} is not the one of this launch; the worker is a stale one",
        )
    _check_bound("manifest_mismatch", "manifest_digest", hello.manifest_digest, expected_manifest)
    _check_bound("kernel_revision_mismatch", "kernel_revision", hello.kernel_revision, expected_kernel)
    for name, value in (expected_flags or {}).items():
        _check_flag(name, hello.engine["build_flags"].get(name), value)
    return hello, HelloAck(PROTOCOL_VERSION, accept=True, max_frame=min(host_max_frame, hello.max_frame))


def _read_object(payload: bytes) -> dict[str, Any]:
    try:
        return codec.decode_object(payload, "HELLO")
    except ProtocolFault as fault:
        raise HandshakeRefused("malformed_hello", str(fault)) from fault


def _check_version(wire: Mapping[str, Any]) -> None:
    version = wire.get("v")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise HandshakeRefused(
            "version_mismatch",
            f"HELLO speaks worker protocol {codec.shown(version)}, this host only the integer {PROTOCOL_VERSION}; "
            "install host and plugin of the same release",
        )


def _read_fields(wire: Mapping[str, Any]) -> Hello:
    try:
        hello = codec.decode_fields(Hello, wire, "HELLO")
    except ProtocolFault as fault:
        raise HandshakeRefused("malformed_hello", str(fault)) from fault
    if hello.max_frame < SMALLEST_MAX_FRAME:
        raise HandshakeRefused(
            "malformed_hello", f"HELLO max_frame {hello.max_frame} is below the least of {SMALLEST_MAX_FRAME} bytes"
        )
    return hello


def _check_flag(name: str, actual: str | None, expected: str) -> None:
    """Numbers depend on these flags: a device, its driver, a library."""
    if actual != expected:
        raise HandshakeRefused(
            "kernel_revision_mismatch",
            f"HELLO build flag {name} is {codec.shown(actual)}, expected is {expected!r}; what the engine runs on "
            "changed after the model was registered: load the model again and probe it under its new identity",
            expected=f"{name}={expected}",
            actual=f"{name}={actual}",
        )


def _check_bound(code: str, field: str, actual: str | None, expected: str | None) -> None:
    if expected is not None and actual != expected:
        raise HandshakeRefused(
            code,
            f"HELLO {field} is {codec.shown(actual)}, expected is {expected!r}; "
            "the plugin changed after the model was registered: load the model again and probe it under its new "
            "identity, or reinstall the plugin it was registered with",
            expected=expected,
            actual=actual,
        )
