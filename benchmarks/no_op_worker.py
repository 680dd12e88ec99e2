"""The real worker around a backend that computes nothing: ``python -m benchmarks.no_op_worker --socket P --nonce N``.

Its vectors are ones, as many to a row as ``dims`` of the model's configuration says; a generation has no tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from synapse_host.hookspecs import EmbedBatch, Generation, LoadSpec
from synapse_host.testing.plain_plugin import DESCRIPTION, PlainModel, PlainPlugin
from synapse_host.testing.workers.stub_worker import launch_arguments
from synapse_host.worker.connection import HostConnection
from synapse_host.worker.host_stream import SocketStream
from synapse_host.worker.main_loop import serve
from synapse_host.worker.parent_death import die_with_parent

#: Components of the largest batch.
_MOST = 4 << 20
_ONES = np.ones(_MOST, dtype=np.float32)


def _load(spec: LoadSpec, progress: Any) -> PlainModel:
    return PlainModel(dims=spec.config["dims"])


def _embed(model: Any, batch: EmbedBatch, progress: Any) -> Any:
    return _ONES[: len(batch.counts) * model.dims].reshape(-1, model.dims)


def _generate(model: Any, prompt: Sequence[int], options: Any, progress: Any) -> Generation:
    return Generation([], "stop", len(prompt))


def main() -> int:
    """Serve one host; returns the exit status."""
    socket_path, nonce = launch_arguments(sys.argv)
    if not die_with_parent():
        return 0
    hooks: dict[str, Any] = {
        "synapse_describe": lambda: DESCRIPTION,
        "synapse_load": _load,
        "synapse_embed": _embed,
        "synapse_generate": _generate,
    }
    return serve(HostConnection(SocketStream.connect(socket_path)), nonce, PlainPlugin(**hooks))


if __name__ == "__main__":
    sys.exit(main())
