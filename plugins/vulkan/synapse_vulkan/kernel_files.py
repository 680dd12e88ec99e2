"""The compiled kernels as they were shipped: each is read whole and held to the digest the kernel revision covers."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from synapse_vulkan import spirv_index

SPIRV = Path(__file__).parent / "spirv"
_REINSTALL = "install synapse-host-vulkan again; in a checkout, build_spirv.py compiles its kernels"


class KernelDamaged(Exception):
    """A kernel is not the one of the package; the message names its file, both digests and what to do."""


def read_kernels(folder: Path = SPIRV) -> dict[str, bytes]:
    """Every kernel of the index by name.

    All are read before any runs: a kernel that a later request is the first to need must not fail that request.

    Raises:
        KernelDamaged: one is missing, cut short or another.

    """
    return {name: _read(folder / f"{name}.spv", digest) for name, digest in spirv_index.SPIRV.items()}


def _read(file: Path, expected: str) -> bytes:
    try:
        code = file.read_bytes()
    except OSError as problem:
        raise KernelDamaged(
            f"kernel {file} cannot be read ({problem.strerror}; expected is one with sha256 {expected}); {_REINSTALL}"
        ) from None
    found = sha256(code).hexdigest()
    if found != expected:
        raise KernelDamaged(
            f"kernel {file} has {len(code)} bytes with sha256 {found}, and expected is {expected}; {_REINSTALL}"
        )
    return code
