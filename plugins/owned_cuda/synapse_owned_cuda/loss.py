"""A fault of the device ends the worker: after most of them nothing in this process can use the device any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from synapse_host.hookspecs import DeviceGone, PluginError

#: What CuPy raises for errors of the CUDA runtime, the driver and cuBLAS; by name, so that CuPy is not imported.
_FAULTS = ("CUDARuntimeError", "CUDADriverError", "CUBLASError")
#: Words of those that say no more than that memory was short.
_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED")


@contextmanager
def device_faults_typed() -> Iterator[None]:
    """Turn a fault of the device, however deep its cause, into the refusal after which the worker ends.

    Raises:
        DeviceGone: the device failed; the host starts another worker.
        PluginError: oom, when memory was short.

    """
    try:
        yield
    except Exception as failure:
        fault = _fault_in(failure)
        if fault is None:
            raise
        if any(word in fault for word in _MEMORY):
            raise PluginError("oom", f"{fault}; send shorter rows, or end what else uses the GPU") from failure
        message = f"{fault}; what was on the GPU is lost and its worker ends: look at nvidia-smi if it happens again"
        raise DeviceGone(message) from failure


def _fault_in(failure: BaseException) -> str | None:
    cause: BaseException | None = failure
    while cause is not None:
        if any(known.__name__ in _FAULTS for known in type(cause).__mro__):
            return str(cause)
        cause = cause.__cause__
    return None
