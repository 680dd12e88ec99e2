"""The life of a worker on its connection: handshake, then one request after another until SHUTDOWN or the end.

The main thread reads requests and runs the engine; another thread only watches for the end of the host. The raw frame
of a request is taken before the request is looked at, so no refusal can leave it behind to be parsed as the next
control frame.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from synapse_host.framing import FrameTooLarge
from synapse_host.hookspecs import BackendDescription
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.hang_up import HangUpWatch
from synapse_host.worker.hook_calls import HookCalls
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.refusal_frame import refusal_frame
from synapse_host.worker_protocol.codec import decode_hello_ack, decode_request
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import PROTOCOL_VERSION, Hello, Message, Shutdown

EXIT_OK, EXIT_PROTOCOL, EXIT_REFUSED, EXIT_HOST_GONE, EXIT_DEVICE_GONE = 0, 71, 72, 73, 76


def serve(connection: HostConnection, nonce: str, plugin: Plugin) -> int:
    """Serve the host on ``connection`` until it says SHUTDOWN or closes; returns the exit status."""
    description: BackendDescription = plugin.hook("synapse_describe")()
    try:
        if not _shake_hands(connection, nonce, description):
            return EXIT_REFUSED
        return _serve_requests(connection, plugin, description)
    except ProtocolFault as fault:
        return _give_up(connection, fault)
    except OSError as problem:
        sys.stderr.write(f"the host is gone: {problem}\n")
        return EXIT_HOST_GONE


def hello_of(description: BackendDescription, nonce: str, max_frame: int) -> Hello:
    """The HELLO a backend of ``description`` opens with."""
    engine = {
        "engine": description.engine,
        "version": description.engine_version,
        "build_flags": dict(description.build_flags),
    }
    return Hello(
        PROTOCOL_VERSION,
        nonce,
        engine,
        os.getpid(),
        max_frame,
        description.manifest_digest,
        description.kernel_revision,
        _packed_of(description),
    )


def _packed_of(description: BackendDescription) -> dict[str, Any] | None:
    packed = description.packed
    return None if packed is None else {"widths": [*packed.widths], "max_rows": packed.max_rows}


def _shake_hands(connection: HostConnection, nonce: str, description: BackendDescription) -> bool:
    connection.send(hello_of(description, nonce, connection.max_frame))
    frame = connection.read_frame()
    if frame is None:
        sys.stderr.write("the host closed the connection instead of accepting HELLO\n")
        return False
    ack = decode_hello_ack(frame)
    if ack.v != PROTOCOL_VERSION or not ack.accept:
        raise ProtocolFault(f"HELLO_ACK says v {ack.v}, accept {ack.accept}; expected are {PROTOCOL_VERSION} and true")
    connection.lower_max_frame(min(connection.max_frame, ack.max_frame))
    return True


def _serve_requests(connection: HostConnection, plugin: Plugin, description: BackendDescription) -> int:
    calls = HookCalls(plugin, description, connection.max_frame, connection.send)
    watch = HangUpWatch(connection.wait_for_end)
    watch.start()
    while (frame := connection.read_frame()) is not None:
        request = decode_request(frame)
        if isinstance(request, Shutdown):
            break
        raw = connection.read_raw() if request.RAW else None
        watch.begin_work()
        answer_request(connection, calls, request, raw)
        watch.end_work()
        if calls.device_gone:
            return EXIT_DEVICE_GONE
    return EXIT_OK


def answer_request(connection: HostConnection, calls: HookCalls, request: Message, raw: bytes | None) -> None:
    """Send the one reply to ``request``: what it asked for, or ERR."""
    reply, payload = calls.answer(request, raw)
    try:
        connection.send(reply, payload)
    except FrameTooLarge as problem:
        connection.send(calls.too_large(request, problem))


def _give_up(connection: HostConnection, fault: ProtocolFault) -> int:
    """Tell the host why, without a request id: frame boundaries can no longer be trusted."""
    sys.stderr.write(f"protocol fault: {fault}\n")
    with contextlib.suppress(OSError):
        connection.send(refusal_frame("invalid_request", str(fault), None, connection.max_frame))
    return EXIT_PROTOCOL
