"""The keys of the jobs that a client makes of one large work: its own, a slash and the part's number. Pure.

The contract gives the parts of a work no field of their own (reading 14), so the key is all that tells them.
"""

from __future__ import annotations


def part_key(request_key: str, number: int) -> str:
    """The key of a part of the work of ``request_key``; parts count from 1."""
    return f"{request_key}/{number:04d}"


def part_number(request_key: str, key: str) -> int | None:
    """Which part of the work of ``request_key`` has this ``key``; None where no client would name one so."""
    work, _, digits = key.rpartition("/")
    if work != request_key or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if number and key == part_key(request_key, number) else None
