"""Gives the system back the memory that reading long texts took.

A tokenizer takes some 250 bytes for each character while it reads, in threads whose pools of memory the C library keeps
for later: two texts of two million characters would leave a host of 50 MB at a gigabyte for the rest of its life.
"""

from __future__ import annotations

from contextlib import suppress

#: Characters from which on it is worth the milliseconds that giving back takes.
MANY_CHARACTERS = 262_144


def give_back_freed_memory() -> None:
    """Return what is free in this process; does nothing where the C library is not glibc, and has no need to."""
    # Only who reads long texts needs it.
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
