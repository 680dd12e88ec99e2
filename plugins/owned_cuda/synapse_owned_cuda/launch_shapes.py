"""How many threads a row is given: pure arithmetic, kept to what ``kernels.cu`` assumes."""

from __future__ import annotations

WARP = 32
#: Threads of a block where more would not help, and the most there may be.
_LONG, _LONGEST = 256, 1024
#: Threads that average positions: eight warps, a feature for each lane.
MEAN_BLOCK = 256
#: Packs of a row a thread of a norm holds in registers (``HELD`` of ``kernels.cu``), and features of a pack.
_HELD, _PACK = 4, 4


def packs(c: int) -> int:
    """What a row of ``c`` features is moved in: fours of them, or one by one where they do not come in fours."""
    return c // _PACK if c % _PACK == 0 else c


def row_block(c: int) -> int:
    """Threads for a row of ``c`` features that turns packs over evenly: whole warps, 256 at most."""
    count = packs(c)
    turns = -(-count // _LONG)
    return _whole_warps(-(-count // turns))


def norm_block(c: int) -> int:
    """Threads for the norm of a row; raises ``ValueError`` for a row no block can hold in registers."""
    count = packs(c)
    threads = max(row_block(c), _whole_warps(-(-count // _HELD)))
    if threads > _LONGEST:
        most = _LONGEST * _HELD * (_PACK if count < c else 1)
        raise ValueError(f"a norm of {c} features is wider than the {most} a block can hold; use another backend")
    return threads


def heads_block(n: int) -> int:
    """Threads for the heads of a position, a warp each: eight warps at most."""
    return WARP * min(n, _LONG // WARP)


def _whole_warps(threads: int) -> int:
    return -(-threads // WARP) * WARP
