"""What the model cache leaves free of its disk."""

from __future__ import annotations

import errno

import pytest

from synapse_host.cache.disk_reserve import RESERVE_BYTES, DiskRoom

DISK = 100 * RESERVE_BYTES


@pytest.mark.parametrize(
    ("total", "reserve"), [(DISK, RESERVE_BYTES), (20 * RESERVE_BYTES, RESERVE_BYTES), (1_000_000, 50_000), (0, 0)]
)
def test_a_small_disk_keeps_a_part_of_itself(total: int, reserve: int) -> None:
    assert DiskRoom(total, total).reserve == reserve


@pytest.mark.parametrize(
    ("free", "wanted", "fits"),
    [
        (RESERVE_BYTES, None, True),
        (RESERVE_BYTES - 1, None, False),
        (RESERVE_BYTES + 10, 10, True),
        (RESERVE_BYTES + 10, 11, False),
        (RESERVE_BYTES - 1, 0, False),
    ],
)
def test_what_fits(free: int, wanted: int | None, fits: bool) -> None:
    fault = DiskRoom(free, DISK).fault(wanted)
    assert (fault is None) == fits
    if fault is not None:
        assert fault.errno == errno.ENOSPC
        assert f"{free} bytes free" in str(fault)
        assert f"the {RESERVE_BYTES} kept for the store" in str(fault)
        assert ("nobody tells" if wanted is None else f"the next {wanted} bytes") in str(fault)
