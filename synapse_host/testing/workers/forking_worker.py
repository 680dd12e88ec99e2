"""A worker that serves every connection in a fresh copy of itself: thousands of worker lives in a second or two.

``python -m synapse_host.testing.workers.forking_worker SOCKET`` listens at SOCKET and prints a line when it does. Each
copy is the real worker around a plugin that answers every request with small numbers; what it has to say goes to
standard error.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from synapse_host.hookspecs import CheckNumbers, EmbedBatch, Generation, Progress
from synapse_host.testing.plain_plugin import DESCRIPTION, PlainPlugin
from synapse_host.worker import embedding, generation, reranking, self_checking  # noqa: F401 - imported once, not in every copy
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.host_stream import SocketStream
from synapse_host.worker.main_loop import serve

NONCE = "0123456789abcdef"
#: What stands on standard error when an exception left a worker's main loop, which none may.
ESCAPED = "escaped from the main loop"
DIMS = 4
#: A first token that makes the plugin raise.
RAISING_TOKEN = 13


def _embed(model: Any, batch: EmbedBatch, progress: Progress) -> Any:
    _maybe_raise(batch.ids)
    progress(len(batch.counts), "inference")
    return np.ones((len(batch.counts), DIMS), dtype=np.float32)


def _rerank(model: Any, sequences: Sequence[Any], progress: Progress) -> Any:
    _maybe_raise(sequences[0])
    return np.zeros(len(sequences), dtype=np.float32)


def _rerank_pairs(model: Any, query: Any, candidates: Sequence[Any], progress: Progress) -> Any:
    _maybe_raise(query)
    return np.zeros(len(candidates), dtype=np.float32)


def _generate(model: Any, prompt: Any, options: Any, progress: Progress) -> Generation:
    _maybe_raise(prompt)
    ids = list(range(min(3, options["max_tokens"])))
    return Generation(ids, "stop", len(prompt), "text")


def _admit(**_: Any) -> Any:
    return {"executables": [{"id": "a", "layers": [0]}], "cpu_stages": ["pool"]}


def _maybe_raise(ids: Any) -> None:
    if len(ids) and ids[0] == RAISING_TOKEN:
        raise ZeroDivisionError("the token of bad luck")


def plugin() -> PlainPlugin:
    """The plugin of every copy."""
    hooks: dict[str, Any] = {
        "synapse_describe": lambda: DESCRIPTION,
        "synapse_embed": _embed,
        "synapse_rerank": _rerank,
        "synapse_rerank_pairs": _rerank_pairs,
        "synapse_generate": _generate,
        "synapse_self_check": lambda model, progress: [CheckNumbers("vectors", "", "row", np.ones((1, DIMS), "<f4"))],
        "synapse_admit_shape": _admit,
        "synapse_admit_packed": _admit,
        "synapse_evict_shape": lambda **_: True,
        "synapse_evict_packed": lambda **_: True,
    }
    return PlainPlugin(**hooks)


def _serve_copy(connection: socket.socket) -> NoReturn:
    try:
        status = serve(HostConnection(SocketStream(connection)), NONCE, plugin())
    except BaseException:
        traceback.print_exc()
        sys.stderr.write(f"{ESCAPED}\n")
        status = 1
    sys.stderr.flush()
    os._exit(status)


def main(path: str) -> None:
    """Listen at ``path`` until killed."""
    # Nobody asks for the statuses: a copy that fails in an unforeseen way says so on standard error.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201 - whoever started this program waits for it
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _serve_copy(connection)
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
