"""What the engine asks of CuPy, against a CuPy of NumPy arrays whose kernels are the real ones, run on the CPU.

Of the true CuPy nothing is computed here; the names and forms asked for are those of version 14.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from synapse_owned_cuda import plugin
from synapse_owned_cuda.cpu_shim.launching import CpuDevice
from synapse_owned_cuda.cupy_device import CupyDevice
from synapse_owned_cuda.driver import Gpu
from synapse_owned_cuda.evidence import best_place

from synapse_host.hookspecs import DeviceGone, PluginError
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3


class FakeCupy(ModuleType):
    """NumPy under CuPy's name, with what of CuPy the device uses; ``asked`` is what it was told."""

    def __init__(self, cpu: CpuDevice) -> None:
        super().__init__("cupy")
        self.__dict__.update({name: getattr(np, name) for name in NAMES})
        self.asked: list[tuple[str, Any]] = []
        self.cpu = cpu
        self.cuda = self
        self.allocator: Any = None
        self.full: list[MemoryError] = []
        self.__version__ = "14.2.0"
        self.broken: Exception | None = None

    # --- cupy ---
    @staticmethod
    def asnumpy(array: Any) -> Any:
        return np.array(array)

    def get_default_memory_pool(self) -> FakeCupy:
        return self

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self.asked.append(("limit", size))

    def get_cublas_handle(self) -> int:
        return 77

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        self.asked.append(("math", (handle, mode)))

    def set_allocator(self, allocator: Any) -> None:
        self.allocator = allocator

    def malloc(self, size: int) -> int:
        if self.full:
            raise self.full.pop()
        return size

    def free_all_blocks(self) -> None:
        self.asked.append(("given back", None))

    def RawModule(self, code: str, *, options: tuple[str, ...]) -> FakeCupy:  # noqa: N802
        self.asked.append(("options", options))
        return self

    def get_function(self, name: str) -> Any:
        if self.broken is not None:
            raise self.broken

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any]) -> None:
            assert (len(grid), len(block), block[1:]) == (3, 3, (1, 1))
            self.cpu.launch(name, grid, block[0], [read(argument) for argument in arguments])

        return launch

    # --- cupy.cuda ---
    def Device(self, place: int) -> FakeCupy:  # noqa: N802
        self.asked.append(("device", place))
        return self

    def use(self) -> None:
        """As the last device asked for."""

    @property
    def runtime(self) -> FakeCupy:
        return self

    @staticmethod
    def memGetInfo() -> tuple[int, int]:  # noqa: N802
        return 6 * 2**30, 8 * 2**30

    def get_current_stream(self) -> FakeCupy:
        return self

    def synchronize(self) -> None:
        self.asked.append(("wait", None))


NAMES = ("float16", "float32", "int32", "empty", "asarray", "ascontiguousarray", "matmul", "where", "isnan", "argmax")


def read(argument: Any) -> Any:
    """What a launch passes: CuPy takes the width of a number from its NumPy type, and nothing else would do."""
    if isinstance(argument, np.ndarray):
        return argument
    if isinstance(argument, np.uintp):
        assert argument == 0
        return None
    assert isinstance(argument, np.int32 | np.float32), f"{argument!r} has no width a kernel's parameter has"
    return argument.item()


@pytest.fixture
def cupy(launcher: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    with CpuDevice(launcher) as cpu:
        made = FakeCupy(cpu)
        monkeypatch.setitem(sys.modules, "cupy", made)
        for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules["cupy_backends.cuda.libs"].cublas = made  # type: ignore[attr-defined]
        yield made


def test_a_model_runs_through_it_as_on_the_reference(cupy: FakeCupy, tmp_path: Path) -> None:
    write_qwen3(tmp_path, TinyQwen3(9, 24, 2, 4, 2, 12, 40, 90, 128, tied=True))
    rows, vectors = seeded_rows([3, 9, 17], 90), []
    for backend in (plugin, reference_plugin):
        with loaded_model(backend, tmp_path, max_tokens=64) as model:
            vectors.append(backend.synapse_embed(model, batch_of(rows, "last"), ignore_progress).astype(np.float64))
    assert np.sum(vectors[0] * vectors[1], axis=1).min() >= 0.999999
    asked = dict(cupy.asked)
    assert asked["options"] == ("--std=c++17",)
    assert asked["device"] == 0
    assert 64 * 2**20 < asked["limit"] < 2**28


def test_it_takes_the_device_it_is_given_and_waits_for_its_stream(cupy: FakeCupy) -> None:
    device = CupyDevice(3)
    device.wait()
    wanted = [("device", 3), ("math", (77, 16)), ("options", ("--std=c++17",)), ("wait", None)]
    assert cupy.asked == wanted
    assert device.free_memory() == 6 * 2**30
    assert cupy.asked[-1] == ("given back", None)


def test_a_pool_at_its_limit_gives_back_what_it_kept_before_a_lane_is_told(cupy: FakeCupy) -> None:
    """CuPy's own refuses although nothing but kept blocks stands in the way."""
    CupyDevice()
    assert cupy.allocator(512) == 512
    cupy.asked.clear()
    cupy.full = [MemoryError("kept")]
    assert cupy.allocator(1024) == 1024
    assert cupy.asked == [("given back", None)]
    cupy.full = [MemoryError("used"), MemoryError("kept")]
    with pytest.raises(MemoryError, match="used"):
        cupy.allocator(1024)


def test_the_best_device_is_the_first_of_the_highest_capability() -> None:
    old, new = Gpu("old", 1, 7, 0), Gpu("new", 1, 8, 9)
    assert [best_place(gpus) for gpus in ((), (old,), (old, new), (new, old), (old, new, new))] == [0, 0, 1, 0, 1]


class CompileException(Exception):
    """As CuPy names it."""


class CUDADriverError(RuntimeError):
    """As CuPy names it."""


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (CompileException("a.cu\na.cu(7): error: identifier is undefined\n1 error detected"), r"a\.cu\(7\): error"),
        (CompileException("nvrtc: error: invalid value for --gpu-architecture"), "invalid value"),
        (CompileException(""), "without a word"),
        (CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available"), "no kernel image"),
    ],
)
def test_kernels_that_do_not_compile_are_named_with_what_to_do(
    cupy: FakeCupy, failure: Exception, told: str, tmp_path: Path
) -> None:
    cupy.broken = failure
    write_qwen3(tmp_path, TinyQwen3(9, 24, 2, 4, 2, 12, 40, 90, 128, tied=True))
    with pytest.raises(PluginError) as refused, loaded_model(plugin, tmp_path, max_tokens=64):
        pass
    assert refused.value.code == "backend_missing"
    assert re.search(
        f"CuPy 14.2.0 cannot compile kernels.cu for device 0 .*{told}.*; update the driver", str(refused.value)
    )


def test_a_device_that_fails_while_it_compiles_is_no_fault_of_the_code(cupy: FakeCupy, tmp_path: Path) -> None:
    cupy.broken = CUDADriverError("CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error")
    write_qwen3(tmp_path, TinyQwen3(9, 24, 2, 4, 2, 12, 40, 90, 128, tied=True))
    with pytest.raises(DeviceGone, match="ECC"), loaded_model(plugin, tmp_path, max_tokens=64):
        pass
