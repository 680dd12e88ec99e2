"""``python -m synapse_host.worker``: the child process that holds one backend.

Two forms: ``BACKEND --socket PATH --nonce N`` serves a host; ``BACKEND --probe-capability`` describes and probes.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from synapse_host.backends.backend_settings import parse_settings
from synapse_host.hookspecs import BackendSettings
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.host_stream import Connect, SocketStream
from synapse_host.worker.main_loop import serve
from synapse_host.worker.parent_death import die_with_parent
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.standard_streams import secure_standard_streams

EXIT_NO_PARENT, EXIT_NO_HOST, EXIT_NO_PLUGIN = 0, 74, 75


def main(connect: Connect = SocketStream.connect) -> int:
    """Run the form the command line asks for, over a stream of ``connect``; returns the exit status."""
    secure_standard_streams()
    options = _parser().parse_args()
    settings = parse_settings(options.setting)
    if not die_with_parent():
        return EXIT_NO_PARENT
    if options.probe_capability:
        from synapse_host.worker.probe import run_probe  # a serving worker does without it

        return run_probe(options.backend, settings)
    if not (options.socket and options.nonce):
        _parser().error("--socket and --nonce are both needed to serve a host")
    try:
        connection = HostConnection(connect(options.socket))
    except OSError as problem:
        sys.stderr.write(f"worker {_name(options.backend)!r} finds no host at {options.socket!r}: {problem}\n")
        return EXIT_NO_HOST
    return _serve(options.backend, settings, connection, options.nonce)


def _name(backend: str) -> str:
    return os.environ.get("SYNAPSE_WORKER_ID", backend)


def _serve(backend: str, settings: BackendSettings, connection: HostConnection, nonce: str) -> int:
    try:
        plugin = _load(backend, settings)
    except Exception:  # the text belongs in the host's log ring, whatever the plugin raised
        traceback.print_exc()
        sys.stderr.write(f"worker {_name(backend)!r} cannot load backend {backend!r}\n")
        return EXIT_NO_PLUGIN
    return serve(connection, nonce, plugin)


def _load(backend: str, settings: BackendSettings) -> Plugin:
    from synapse_host.backends.loaded_plugin import load_plugin  # only this process ever imports a plugin

    return load_plugin(backend, settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m synapse_host.worker", description=__doc__)
    parser.add_argument("backend", help="entry-point name of the backend")
    parser.add_argument("--socket", help="address at which the host listens: the path of a Unix socket")
    parser.add_argument("--nonce", help="the launch nonce to present in HELLO")
    parser.add_argument("--probe-capability", action="store_true", help="print one JSON line about the backend, exit")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="what an operator set")
    return parser


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the teardown of a native library must not turn an orderly end into a crash, or hang it.
    os._exit(status)
