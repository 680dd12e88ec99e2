"""Keeps file descriptors 0, 1 and 2 apart from everything the protocol uses.

A native library prints to descriptor 1 whenever it likes. The worker's socket must therefore never land on a standard
descriptor, and the one line a probe answers with must leave by a descriptor no library knows.
"""

from __future__ import annotations

import faulthandler
import io
import os
import stat
import sys

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def secure_standard_streams() -> None:
    """Give the process an empty standard input and an open 1 and 2; call before any socket or plugin exists.

    A host that runs without standard streams spawns children whose first ``open`` would be number 0, 1 or 2.
    """
    for number in (_STDIN, _STDOUT, _STDERR):
        _open_if_closed(number)
    _keep_lock()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    for stream in (sys.stdout, sys.stderr):
        # Whole lines reach the host's log ring even when the process is killed a moment later.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable(_STDERR)


def divert_stdout() -> int:
    """Send every print to standard error from now on; returns a descriptor of the original standard output."""
    answer = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return answer


def _keep_lock() -> None:
    """Hold what stands in the place of standard input where it is a file: the host hands down a lock that way.

    The duplicate is never closed, so the lock is held as long as the process lives, and by no process it starts.
    """
    if stat.S_ISREG(os.fstat(_STDIN).st_mode):
        os.dup(_STDIN)


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        spare = os.open(os.devnull, os.O_RDWR)
        if spare != number:
            os.dup2(spare, number)
            os.close(spare)
