"""NVIDIA's runtime compiler through ctypes. It needs neither a GPU nor a driver.

Not CuPy's own door to it, which asks for a driver.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LIBRARY = "nvrtc64_120_0.dll" if sys.platform == "win32" else "libnvrtc.so.12"
_FOLDER = "bin" if sys.platform == "win32" else "lib"
#: ``ptxas`` says what each kernel takes. No fast mathematics: divisions, roots and exponentials round as they should.
OPTIONS = ("--std=c++17", "--ptxas-options=-v")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin and what the compiler and the assembler said about it."""

    cubin: bytes
    log: str


class CompileFailed(RuntimeError):
    """The source does not compile; the message names the architecture, the result and the compiler's log."""


def compile_source(source: str, architecture: str, options: Sequence[str] = OPTIONS) -> Compiled:
    """Compile CUDA C for one real architecture such as ``sm_75``.

    Raises:
        CompileFailed: the source is wrong, or the compiler does not know the architecture or an option.
        OSError: the compiler is not installed; the message names the package.

    """
    library, program = _library(), ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None),
        "take the source",
    )
    try:
        given = [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
        result = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode("utf-8", "replace")
        if result:
            told = log.rstrip("\0").strip() or "without a word"
            raise CompileFailed(f"kernels.cu does not compile for {architecture} (NVRTC result {result}): {told}")
        return Compiled(_text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), log.rstrip("\0"))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _library() -> ctypes.CDLL:
    found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    for folder in (found.submodule_search_locations if found else None) or ():
        path = Path(folder) / _FOLDER / _LIBRARY
        if path.exists():
            return ctypes.CDLL(str(path))
    raise OSError(f"{_LIBRARY} is not installed; install it with: pip install nvidia-cuda-nvrtc-cu12")


def _text(size_of: Callable[..., int], read: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)), "tell the size of what it made")
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer), "hand over what it made")
    return buffer.raw


def _check(result: int, step: str) -> None:
    if result:
        raise CompileFailed(
            f"NVRTC could not {step} (result {result}); reinstall it with: pip install nvidia-cuda-nvrtc-cu12"
        )
