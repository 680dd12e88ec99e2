"""SHA-256, the only digest of the project, as lowercase hex."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

#: Bytes read at a time: large enough that hashing, not calling, is the cost.
_CHUNK_BYTES = 1 << 20


def sha256_hex(data: bytes) -> str:
    """The digest of ``data``: 64 lowercase hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(source: int | Path) -> str:
    """The digest of a whole file, given as a path or as an open descriptor whose offset is left alone.

    Raises:
        OSError: the file cannot be opened or read.

    """
    if isinstance(source, Path):
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return sha256_file(descriptor)
        finally:
            os.close(descriptor)
    digest, position = hashlib.sha256(), 0
    while chunk := os.pread(source, _CHUNK_BYTES, position):
        digest.update(chunk)
        position += len(chunk)
    return digest.hexdigest()
