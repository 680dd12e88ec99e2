"""The GPUs of the machine profile, asked of management libraries compiled to answer what such machines would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synapse_host.identity.machine_profile import read_machine_profile
from synapse_host.identity.nvidia_gpus import NvidiaGpu, nvidia_gpus

SOURCE = Path(__file__).parents[1] / "fixtures" / "fake_nvml.c"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake library is one of Linux")
Fake = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    def compiled(*defines: str) -> str:
        library = tmp_path / "libfake.so"
        subprocess.run(["cc", "-shared", "-fPIC", *defines, "-o", library, SOURCE], check=True)
        return str(library)

    return compiled


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    (tmp_path / "version").touch()
    return tmp_path / "version"


def test_every_gpu_with_its_memory_and_driver(fake: Fake, sign: Path) -> None:
    wanted = tuple(NvidiaGpu(f"Fake GPU {place}", 24 * 1024, "550.54.15") for place in range(2))
    assert nvidia_gpus(fake(), (sign,)) == wanted


@pytest.mark.parametrize("defines", [("-DINIT=9",), ("-DCOUNT=0u",), ("-DNO_MEMORY_CALL",)], ids=" ".join)
def test_a_driver_that_does_not_answer_is_no_gpu(defines: tuple[str, ...], fake: Fake, sign: Path) -> None:
    assert nvidia_gpus(fake(*defines), (sign,)) == ()


def test_a_kernel_without_the_driver_is_not_asked(fake: Fake, tmp_path: Path) -> None:
    assert nvidia_gpus(fake(), (tmp_path / "nothing",)) == ()
    assert nvidia_gpus(str(tmp_path / "no.so"), (tmp_path,)) == ()


def test_ctypes_is_not_imported_for_a_machine_without_a_gpu() -> None:
    lines = (
        "import sys",
        "from synapse_host.identity import nvidia_gpus as it",
        "before = 'ctypes' in sys.modules",
        "it.nvidia_gpus(signs=())",
        "sys.exit('ctypes' in sys.modules and not before)",
    )
    subprocess.run([sys.executable, "-c", "; ".join(lines)], check=True)


def test_the_profile_of_this_machine_holds_what_the_driver_says() -> None:
    assert read_machine_profile((), os_build_override=None).gpus == nvidia_gpus()
