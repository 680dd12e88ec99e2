"""A worker never outlives its host: on Linux the kernel kills it; everywhere the end of the socket does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: ``prctl`` option of ``<sys/prctl.h>``: the signal this process gets when the thread that spawned it ends.
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the kernel for SIGKILL at the parent's death; False when the parent is gone already.

    Elsewhere than on Linux nothing is asked and the answer is True: the reader of the socket notices.
    """
    if sys.platform != "linux":
        return True
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died between its fork and the call above; then no signal will come.
    return os.getppid() == parent
