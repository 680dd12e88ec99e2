"""The life of a worker on its connection: handshake, then one request after another until SHUTDOWN or the end.

The main thread runs the engine; a reader thread only reads. The raw frame of a request is taken before the request
is looked at, so no refusal can leave it behind to be parsed as the next control frame.
"""

from __future__ import annotations

import contextlib
import os
import sys

from synapse_host.hookspecs import BackendDescription
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.frame_reader import FrameReader
from synapse_host.worker.hook_calls import HookCalls
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker_protocol.codec import decode_hello_ack, decode_request
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import PROTOCOL_VERSION, Err, Hello, Shutdown

EXIT_OK, EXIT_PROTOCOL, EXIT_REFUSED, EXIT_HOST_GONE = 0, 71, 72, 73


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
    )


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
    reader = FrameReader(connection.read_frame)
    reader.start()
    while (frame := reader.next_request()) is not None:
        request = decode_request(frame)
        if isinstance(request, Shutdown):
            break
        reader.begin_work()
        raw = reader.next_raw() if request.RAW else None
        reply, vectors = calls.answer(request, raw)
        connection.send(reply, vectors)
    return EXIT_OK


def _give_up(connection: HostConnection, fault: ProtocolFault) -> int:
    """Tell the host why, without a request id: frame boundaries can no longer be trusted."""
    sys.stderr.write(f"protocol fault: {fault}\n")
    with contextlib.suppress(OSError):
        connection.send(Err("invalid_request", str(fault)))
    return EXIT_PROTOCOL
