"""What the assembler's log (``--ptxas-options=-v``) says each kernel takes: pure text work."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Bytes of stack and of spills, registers of a thread, and bytes of shared memory of a block."""

    stack: int
    spill_stores: int
    spill_loads: int
    registers: int
    shared: int


def read_log(log: str) -> dict[str, KernelUse]:
    """Use by kernel; raises ``ValueError`` for a kernel of which the log does not say everything."""
    found: dict[str, KernelUse] = {}
    parts = _FUNCTION.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        frame, used = _FRAME.search(text), _USED.search(text)
        if frame is None or used is None:
            raise ValueError(f"the assembler's log does not say what {name!r} takes: {text.strip()[:200]}")
        shared = _SHARED.search(text)
        stack, stores, loads = map(int, frame.groups())
        found[name] = KernelUse(stack, stores, loads, int(used[1]), int(shared[1]) if shared else 0)
    return found
