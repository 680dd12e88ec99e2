"""Every kernel compiles for every architecture, and the assembler's log shows that none takes stack or spills."""

from __future__ import annotations

import pytest
from synapse_owned_cuda.kernel_table import ARCHITECTURES, ENTRY_POINTS, SOURCE
from synapse_owned_cuda.nvrtc import CompileFailed, compile_source
from synapse_owned_cuda.ptxas_log import KernelUse, read_log

#: Shared memory a block may have without asking for more, on every architecture.
SHARED_LIMIT = 48 * 1024
#: Registers of a thread that leave room for three blocks of attention, 128 threads each, on a multiprocessor of 65,536.
REGISTER_LIMIT = 168
#: A kernel whose array is indexed by a number known only when it runs, so it cannot live in registers.
WASTEFUL = """
extern "C" __global__ void wasteful(int *out, const int *at) {
    int held[64];
    for (int i = 0; i < 64; i++) held[at[i] & 63] = i;
    out[threadIdx.x] = held[at[threadIdx.x] & 63];
}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_take_no_stack_and_spill_nothing(architecture: str) -> None:
    compiled = compile_source(SOURCE.read_text(encoding="utf-8"), architecture)
    assert compiled.cubin.startswith(b"\x7fELF")
    use = read_log(compiled.log)
    assert sorted(use) == sorted(ENTRY_POINTS), "the log must name every kernel and no other"
    wasteful = {
        name: taken for name, taken in use.items() if (taken.stack, taken.spill_stores, taken.spill_loads) != (0, 0, 0)
    }
    assert wasteful == {}
    assert max(taken.shared for taken in use.values()) <= SHARED_LIMIT
    assert max(taken.registers for taken in use.values()) <= REGISTER_LIMIT


def test_a_kernel_that_takes_stack_is_seen() -> None:
    use = read_log(compile_source(WASTEFUL, "sm_75").log)
    assert use["wasteful"].stack >= 256


def test_a_log_that_leaves_something_out_is_refused() -> None:
    with pytest.raises(ValueError, match="'half'"):
        read_log("ptxas info : Function properties for half\n    0 bytes stack frame")


def test_a_log_is_read_by_kernel() -> None:
    head, frame = "ptxas info    : Function properties for", "bytes stack frame,"
    log = (
        f"{head} one\n    8 {frame} 4 bytes spill stores, 2 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 1024 bytes smem, 380 bytes cmem[0]\n"
        f"{head} two\n    0 {frame} 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, 360 bytes cmem[0]\n"
    )
    assert read_log(log) == {"one": KernelUse(8, 4, 2, 40, 1024), "two": KernelUse(0, 0, 0, 8, 0)}


def test_a_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(CompileFailed, match=r"kernels\.cu does not compile for sm_75 .*kernels\.cu\(1\)"):
        compile_source("nonsense", "sm_75")


def test_an_architecture_the_compiler_does_not_know_is_named() -> None:
    with pytest.raises(CompileFailed, match=r"for sm_1 \(NVRTC result 5\): nvrtc: error: invalid value"):
        compile_source("", "sm_1")
