"""llama.cpp's C functions, through the ctypes declarations of llama-cpp-python; nothing of its Python classes is used.

The library prints a page of facts about every model. Here only warnings and errors reach standard error, where the
host keeps the last of them, and the last few lines are kept to say why a load failed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from functools import cache
from typing import Any

#: ggml's log levels (ggml.h).
_WARN, _ERROR, _CONTINUED = 3, 4, 5
_LINES_KEPT = 4


class _Log:
    """Takes what the library logs. Called from C: nothing may be raised."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=_LINES_KEPT)
        self._level = _WARN

    def __call__(self, level: int, text: bytes | None, _data: object) -> None:
        if level != _CONTINUED:
            self._level = level
        if self._level < _WARN or not text:
            return
        line = text.decode("utf-8", "replace")
        sys.stderr.write(line)
        sys.stderr.flush()
        if self._level >= _ERROR and line.strip():
            self.errors.append(line.strip())


_log = _Log()
#: The library calls them for as long as the process lives.
_callbacks: list[Any] = []


@cache
def open_library() -> Any:
    """The module of C functions, its log and backends set up; raises ``ImportError`` or ``RuntimeError``."""
    # An abort would start a debugger to print its stack: seconds of silence, and pages that push our lines out.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    from llama_cpp import llama_cpp as library

    _callbacks.append(library.llama_log_callback(_log))
    library.llama_log_set(_callbacks[-1], ctypes.c_void_p(0))
    library.llama_backend_init()
    return library


def forget_errors() -> None:
    """Start a new account of what goes wrong."""
    _log.errors.clear()


def last_errors() -> str:
    """What the library said went wrong since ``forget_errors``, in one line; empty when it said nothing."""
    return "; ".join(_log.errors)
