"""A backend module for worker tests, as source text: small, stdlib and numpy, with one trick per text of a token.

A batch whose first token is a key of ``TRICKS`` makes the engine do what stands there; any other row becomes the vector
of its own tokens. Install it with ``fake_distributions.install_backend``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from synapse_host.worker_protocol.messages import Load

#: The bytes of the artifact; the first comes back as the last component of every vector.
WEIGHTS = b"\x07 weights"

#: First token of the first row -> what the engine does instead of, or before, an honest answer.
TRICKS = {
    901: "raises",
    902: "NaN in the second row",
    903: "zeros in the second row",
    904: "wrong shape",
    905: "wrong dtype",
    906: "out of memory",
    907: "prints on descriptor 1 and 2",
    908: "unlawful progress",
    909: "never returns, without holding the interpreter",
    910: "PluginError",
    911: "raises SystemExit",
}

FAKE_ENGINE = """
import mmap, os, threading

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, PluginError, hookimpl

DIMS = 4


class Model:
    dims = DIMS
    buckets = [16, 32]

    def __init__(self, spec):
        self.spec = spec
        self.bytes = mmap.mmap(spec.artifact_fd, 0, access=mmap.ACCESS_READ)


@hookimpl
def synapse_describe():
    return BackendDescription(
        backend="fake", engine="fake-engine", engine_version="1.2", build_flags={"kind": "fake"}, tasks=("embed",),
        model_formats=("safetensors-package",), families=("bert",), dtypes=("f32",), device_class="cpu",
        platforms=(), extra="", owned=True, abort_capable=False, kernel_revision="r1", manifest_digest="aa",
    )


@hookimpl
def synapse_probe_capability():
    return CapabilityEvidence("ok", required={}, observed={})


@hookimpl
def synapse_load(spec, progress):
    progress(1, "setup")
    if spec.config.get("refuse"):
        raise PluginError("model_unsupported", "the configuration says refuse")
    if spec.config.get("raise"):
        raise RuntimeError("broken loader")
    return Model(spec)


@hookimpl
def synapse_embed(model, batch, progress):
    import numpy as np

    os.write(1, b"embedding\\n") if batch.ids[0] == 907 else None
    os.write(2, b"complaining\\n") if batch.ids[0] == 907 else None
    rows = np.split(batch.ids, np.cumsum(batch.counts)[:-1])
    vectors = np.stack([np.array([len(row), row[0], row[-1], model.bytes[0]], dtype=np.float32) for row in rows])
    trick(int(batch.ids[0]), progress)
    if batch.ids[0] == 902:
        vectors[1, 2] = np.nan
    if batch.ids[0] == 903:
        vectors[1] = 0
    if batch.ids[0] == 904:
        return vectors[:, :3]
    if batch.ids[0] == 905:
        return vectors.astype(np.float64)
    progress(len(rows), "inference")
    return vectors


def trick(token, progress):
    if token == 901:
        raise ValueError("matrix is singular")
    if token == 906:
        raise MemoryError("no room for 7 GiB")
    if token == 908:
        progress(1, "inference")
        progress(1, "inference")
    if token == 909:
        os.write(2, b"stuck\\n")
        threading.Event().wait(600)
    if token == 910:
        raise PluginError("inference_failed", "device lost")
    if token == 911:
        raise SystemExit(12)


@hookimpl
def synapse_unload(model):
    model.bytes.close()
    return True
"""


def load_request(folder: Path, config: object = None, **changes: str) -> Load:
    """A LOAD of ``WEIGHTS`` and of ``config`` as JSON, both written below ``folder``.

    ``changes`` replaces pairs of runtime_config, or drops them when empty; ``path`` and ``digest`` are the artifact's.
    """
    weights, config_file = folder / "weights.bin", folder / "config.json"
    weights.write_bytes(WEIGHTS)
    config_file.write_text(config if isinstance(config, str) else json.dumps(config or {}))
    pairs = {
        "config_path": str(config_file),
        "config_digest": hashlib.sha256(config_file.read_bytes()).hexdigest(),
        "family": "bert",
        "dtype": "f32",
        "max_tokens": "512",
        "operation": "embed",
    }
    path, digest = changes.pop("path", str(weights)), changes.pop("digest", hashlib.sha256(WEIGHTS).hexdigest())
    kept = {key: value for key, value in (pairs | changes).items() if value}
    return Load("load-1", path, digest, "safetensors-package", kept)
