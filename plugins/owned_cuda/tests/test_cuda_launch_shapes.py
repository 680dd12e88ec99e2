"""How many threads a row is given, against what the kernels assume."""

from __future__ import annotations

import re

import pytest
from synapse_owned_cuda.kernel_table import SOURCE
from synapse_owned_cuda.launch_shapes import heads_block, norm_block, packs, row_block


@pytest.mark.parametrize(
    ("c", "moved", "rows", "norm"),
    [
        (1, 1, 32, 32),
        (70, 70, 96, 96),
        (768, 192, 192, 192),
        (1024, 256, 256, 256),
        (1152, 288, 160, 160),
        (3072, 768, 256, 256),
        (8192, 2048, 256, 512),
        (16_384, 4096, 256, 1024),
    ],
)
def test_threads_of_a_row(c: int, moved: int, rows: int, norm: int) -> None:
    assert (packs(c), row_block(c), norm_block(c)) == (moved, rows, norm)


def test_every_norm_fits_the_registers_of_its_block() -> None:
    held = int(re.findall(r"#define HELD (\d+)", SOURCE.read_text(encoding="utf-8"))[0])
    for c in range(1, 4097):
        threads = norm_block(c)
        assert threads % 32 == 0
        assert threads <= 1024
        assert held * threads >= packs(c)


def test_a_row_wider_than_a_block_is_refused() -> None:
    for c, most in ((16_388, 16_384), (4099, 4096)):
        with pytest.raises(ValueError, match=f"a norm of {c} features is wider than the {most}"):
            norm_block(c)


def test_a_warp_for_each_head_up_to_eight() -> None:
    assert [heads_block(n) for n in (1, 7, 12, 16)] == [32, 224, 256, 256]
