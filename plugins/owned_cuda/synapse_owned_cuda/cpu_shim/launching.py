"""Runs the kernels on the CPU: the same source compiled as C++, blocks as fibres, with AddressSanitizer.

For tests, on a machine with a C++ compiler and without a GPU. A launch gives grid, block and arguments as one on the
device would, so a grid that covers half a batch is as wrong here as there.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_owned_cuda.kernel_table import ENTRY_POINTS, SOURCE

#: An array is a pointer the kernel may write through, None a null pointer.
Argument: TypeAlias = npt.NDArray[Any] | int | float | None
_HERE = Path(__file__).parent
#: In which order a block's threads run where several could: as numbered, backwards, and two shuffles' seed.
ORDERS = (0, 1, 20_261)


class LaunchFailed(RuntimeError):
    """The launch did not end well; the message is what the launcher or the sanitizer said."""


def build_launcher(
    folder: Path, source: Path = SOURCE, entry_points: Sequence[str] = ENTRY_POINTS, level: str = "-O1"
) -> Path:
    """Compile ``source`` and the launcher below ``folder``; raises ``LaunchFailed`` with the compiler's words."""
    program, table = folder / "launcher", folder / "entries.h"
    entries = " ".join(f"ENTRY({name})" for name in entry_points)
    table.write_text(f"#define ENTRIES {entries}\n", encoding="utf-8")
    main = folder / "main.cpp"
    parts = (_HERE / "cuda_on_cpu.h", source, table, _HERE / "launcher.cpp")
    main.write_text("".join(f'#include "{part}"\n' for part in parts), encoding="utf-8")
    flags = [
        "-std=c++17",
        level,
        "-g",
        "-fsanitize=address",
        "-fno-omit-frame-pointer",
        "-fno-strict-aliasing",
        "-Wno-unknown-pragmas",
    ]
    compiler = shutil.which("g++")
    if compiler is None:
        raise LaunchFailed("g++ is not installed; install it to run kernels on the CPU")
    done = subprocess.run([compiler, *flags, "-o", program, main], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchFailed(done.stderr)
    return program


class CpuDevice:
    """Launches kernels of one built launcher, their threads in one order; a context manager, for its process."""

    def __init__(self, program: Path, order: int = 0) -> None:
        self._program = program
        self._order = order
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CpuDevice:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def launch(self, name: str, grid: Sequence[int], block: int, arguments: Sequence[Argument]) -> None:
        """Run the kernel ``name``; arrays (C-contiguous) are changed in place.

        Raises:
            LaunchFailed: an access outside a buffer, a barrier not reached by all, or arguments the kernel does not
                take; the next launch starts afresh.

        """
        arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        try:
            answer = self._exchange(_request(name, grid, block, self._order, arguments), sum(a.nbytes for a in arrays))
        except BaseException:
            # Its answer would be taken for that of the next request.
            self._abandon()
            raise
        if answer is None:
            raise LaunchFailed(f"{name}: {self._end()}")
        at = 0
        for array in arrays:
            array[...] = np.frombuffer(answer, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes

    def _exchange(self, request: bytes, size: int) -> bytes | None:
        """The answer of ``size`` bytes; None when the process ended instead."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen([self._program], stdin=pipe, stdout=pipe, stderr=pipe)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = process.stdout.read(size)
        return answer if len(answer) == size and process.poll() is None else None

    def _abandon(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _end(self) -> str:
        """Stop the process; what it said."""
        process, self._process = self._process, None
        if process is None:
            return ""
        with contextlib.suppress(BrokenPipeError):
            _, said = process.communicate(timeout=60)
            return said.decode("utf-8", "replace")[:4000]
        return "the launcher ended in the middle of a request"


def _request(name: str, grid: Sequence[int], block: int, order: int, arguments: Sequence[Argument]) -> bytes:
    x, y, z = (*grid, 1, 1)[:3]
    head = struct.pack(f"<I{len(name)}s5iI", len(name), name.encode(), x, y, z, block, order, len(arguments))
    return head + b"".join(map(_packed, arguments))


def _packed(argument: Argument) -> bytes:
    if argument is None:
        return b"n"
    if isinstance(argument, np.ndarray):
        return struct.pack("<cQ", b"p", argument.nbytes) + argument.tobytes()
    return struct.pack("<ci", b"i", argument) if isinstance(argument, int) else struct.pack("<cf", b"f", argument)
