"""From a ``WorkerSpec`` to a worker that has shaken hands: listen, spawn, accept, judge HELLO, acknowledge.

Whatever goes wrong on the way, no process, socket or file is left behind.
"""

from __future__ import annotations

import secrets
from functools import partial

import anyio
from anyio.abc import TaskGroup

from synapse_host.framing import FrameTooLarge
from synapse_host.supervision.transport import Listener, WorkerStream
from synapse_host.supervision.worker_fault import WorkerFault, crash_error
from synapse_host.supervision.worker_process import WorkerProcess
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.values import value_object
from synapse_host.worker_protocol.binding import NEVER_BOUND, bound_expectations
from synapse_host.worker_protocol.channel import ChannelClosed, WorkerChannel
from synapse_host.worker_protocol.codec import encode
from synapse_host.worker_protocol.faults import HandshakeRefused, ProtocolFault
from synapse_host.worker_protocol.handshake import check_hello
from synapse_host.worker_protocol.messages import Hello


@value_object
class Launched:
    """A worker ready for its first request."""

    process: WorkerProcess
    stream: WorkerStream
    channel: WorkerChannel
    hello: Hello


async def launch(spec: WorkerSpec, tasks: TaskGroup) -> Launched:
    """Start the worker of ``spec``; its process is watched by ``tasks``.

    Raises:
        EngineCrashed: it could not be spawned, did not connect or speak in time, or its HELLO was refused; details
            say which.

    """
    # Fresh per spawn, 16 hexadecimal characters (original facts 1.1): a stale worker can never answer a new host.
    nonce = secrets.token_hex(8)
    try:
        listener = spec.listen(spec.socket_path)
    except OSError as problem:
        raise _not_spawned(spec, f"cannot listen at {str(spec.socket_path)!r}: {problem}") from problem
    try:
        process = await _spawn(spec, nonce, tasks)
        return await _greet(spec, nonce, listener, process)
    finally:
        listener.close()


async def _spawn(spec: WorkerSpec, nonce: str, tasks: TaskGroup) -> WorkerProcess:
    command = spec.command_line(nonce)
    printed = None if spec.output is None else partial(spec.output.write, spec.worker_id)
    try:
        return await WorkerProcess.spawn(command, spec.worker_id, spec.extra_env, tasks, printed, spec.stdin)
    except OSError as problem:
        raise _not_spawned(spec, f"cannot start {command[0]!r}: {problem}") from problem


def _not_spawned(spec: WorkerSpec, message: str) -> Exception:
    fault = WorkerFault("spawn_failed", message)
    return crash_error(fault, worker_id=spec.worker_id, returncode=None, output_tail="")


async def _greet(spec: WorkerSpec, nonce: str, listener: Listener, process: WorkerProcess) -> Launched:
    stream: WorkerStream | None = None
    try:
        stream = await _accept(spec, listener, process)
        channel = WorkerChannel(stream, spec.max_frame)
        return Launched(process, stream, channel, await _shake_hands(spec, nonce, channel))
    except WorkerFault as fault:
        await _end(process, stream, own_end=fault.reason == "exited")
        raise crash_error(
            fault,
            worker_id=spec.worker_id,
            returncode=process.returncode,
            output_tail=process.output_tail(),
        ) from fault
    except BaseException:
        await _end(process, stream, own_end=False)
        raise


async def _end(process: WorkerProcess, stream: WorkerStream | None, *, own_end: bool) -> None:
    if stream is not None:
        stream.stop()
    with anyio.CancelScope(shield=True):
        await process.end(own_end=own_end)
    if stream is not None:
        stream.close()


async def _accept(spec: WorkerSpec, listener: Listener, process: WorkerProcess) -> WorkerStream:
    accepted: WorkerStream | None = None
    with anyio.move_on_after(spec.accept_deadline_s):
        async with anyio.create_task_group() as race:
            race.start_soon(_cancel_at_exit, process, race.cancel_scope)
            accepted = await listener.accept()
            race.cancel_scope.cancel()
    if accepted is not None:
        return accepted
    if process.exited.is_set():
        raise WorkerFault("exited", "the worker exited before it connected")
    raise WorkerFault("handshake_timeout", f"the worker did not connect within {spec.accept_deadline_s} s")


async def _cancel_at_exit(process: WorkerProcess, scope: anyio.CancelScope) -> None:
    await process.exited.wait()
    scope.cancel()


async def _shake_hands(spec: WorkerSpec, nonce: str, channel: WorkerChannel) -> Hello:
    try:
        return await _exchange_hello(spec, nonce, channel)
    except HandshakeRefused as refusal:
        raise WorkerFault(
            "handshake_refused",
            f"handshake refused: {refusal}",
            refusal.code,
            None if refusal.expected is None else (refusal.expected, refusal.actual),
        ) from refusal
    except (ProtocolFault, FrameTooLarge) as fault:
        raise WorkerFault("handshake_refused", f"handshake refused: {fault}", "malformed_hello") from fault
    except ChannelClosed as closed:
        raise WorkerFault("exited", f"the worker ended before its handshake: {closed}") from closed


async def _exchange_hello(spec: WorkerSpec, nonce: str, channel: WorkerChannel) -> Hello:
    payload: bytes | None = None
    with anyio.move_on_after(spec.hello_deadline_s):
        payload = await channel.receive()
    if payload is None:
        raise WorkerFault("handshake_timeout", f"the worker sent no HELLO within {spec.hello_deadline_s} s")
    manifest, kernel = bound_expectations(spec.engine, spec.expected_manifest, spec.expected_kernel)
    hello, ack = check_hello(
        payload,
        nonce=nonce,
        host_max_frame=spec.max_frame,
        expected_manifest=manifest,
        expected_kernel=kernel,
        expected_flags=None if spec.engine in NEVER_BOUND else spec.expected_flags,
    )
    if channel.pending_bytes:
        raise ProtocolFault(f"the worker sent {channel.pending_bytes} bytes more before HELLO_ACK")
    channel.send(encode(ack))
    channel.lower_max_frame(ack.max_frame)
    return hello
