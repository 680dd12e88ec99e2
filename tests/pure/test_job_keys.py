"""What tells the parts of a work: the names its clients give them, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.client.job_parts import JobPart
from synapse_host.jobs.part_keys import part_key, part_number


@given(work=st.text(max_size=12), number=st.integers(1, 10**6))
def test_a_part_is_known_by_the_name_its_client_gives_it(work: str, number: int) -> None:
    key = JobPart(number).key(work)
    assert key == part_key(work, number)
    assert part_number(work, key) == number
    assert part_number(f"{work}s", key) is None


@pytest.mark.parametrize(
    "key",
    ["w", "w/", "w/0000", "w/1", "w/00001", "w/001", "w/+001", "w/-001", "w/0001/0001", "w/0001 ", "w/١٢٣٤", "/0001"],
)
def test_what_no_client_names_a_part_is_none(key: str) -> None:
    assert part_number("w", key) is None
