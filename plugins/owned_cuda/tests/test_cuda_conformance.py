"""The backend conformance suite over the CUDA engine, in real workers, with NumPy and the CPU in the device's place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from synapse_host.testing.conformance.suite import ConformanceSuite
from synapse_host.testing.fake_distributions import install_backend

#: The plugin itself, but for its name, the machine it asks for and the device it opens.
STAND_IN = """
from dataclasses import replace
from functools import cache
from pathlib import Path

from synapse_host.hookspecs import CapabilityEvidence, hookimpl
from synapse_owned_cuda import plugin
from synapse_owned_cuda.plugin import synapse_embed, synapse_load, synapse_rerank, synapse_self_check, synapse_unload


@hookimpl
def synapse_describe():
    return replace(
        plugin.synapse_describe(), backend="cuda-stand-in", engine="cuda-on-numpy", platforms=(), dtypes=("f32", "f16")
    )


@hookimpl
def synapse_probe_capability():
    return CapabilityEvidence("ok", required={}, observed={})


@cache
def open_stand_in():
    # One for the process, as a GPU is.
    from synapse_owned_cuda.cpu_shim.launching import CpuDevice
    from synapse_owned_cuda.cpu_shim.numpy_device import NumpyDevice

    return NumpyDevice(CpuDevice(Path("LAUNCHER")))


plugin._open_device = open_stand_in
"""


@pytest.fixture(scope="module", autouse=True)
def stand_in(launcher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugin under another name, installed for this process and its children."""
    site = tmp_path_factory.mktemp("site")
    install_backend(site, "cuda-stand-in", STAND_IN.replace("LAUNCHER", str(launcher)))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
        yield


class TestCudaStandIn(ConformanceSuite):
    backend = "cuda-stand-in"
    # Many batches of long rows, where a thread of the device is a fibre of the CPU: minutes. It asks of memory that a
    # device would have, and here is NumPy's.
    test_embedding_again_needs_no_more_memory = None  # type: ignore[assignment]
