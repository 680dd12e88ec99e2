"""What an exchange is expected to take, learned by size, and never believed for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.admission.estimates import DOUBTED, ENOUGH, FLOOR_MS, OUTLIER, Costs

SIZES = st.integers(1, 8192)


def test_what_was_never_seen_takes_what_the_settings_say() -> None:
    assert Costs(25.0).ms("embed", 5000) == 25.0


def test_a_measured_size_takes_what_it_took() -> None:
    costs = Costs(25.0)
    costs.learn("embed", 100, 50.0)
    assert costs.ms("embed", 100) == pytest.approx(50.0)
    assert costs.ms("embed", 120) == pytest.approx(60.0)
    assert costs.ms("rerank", 100) == 25.0


def test_sizes_are_learned_apart_and_another_is_judged_by_the_nearest() -> None:
    costs = Costs(25.0)
    costs.learn("embed", 8, 4.0)
    costs.learn("embed", 3000, 90.0)
    assert costs.ms("embed", 8) == pytest.approx(4.0)
    assert costs.ms("embed", 3000) == pytest.approx(90.0)
    assert costs.ms("embed", 1000) == pytest.approx(30.0)
    assert costs.ms("embed", 16) == pytest.approx(8.0)


def test_no_exchange_is_expected_to_take_less_than_the_floor() -> None:
    costs = Costs(25.0)
    costs.learn("embed", 4096, 1.0)
    assert costs.ms("embed", 1) == FLOOR_MS


def test_one_outlier_counts_for_no_more_than_three_times_what_was_expected() -> None:
    costs = Costs(25.0)
    costs.learn("embed", 100, 50.0)
    costs.learn("embed", 100, 60_000.0)
    assert costs.ms("embed", 100) <= 50.0 * (1 + 0.2 * (OUTLIER - 1)) + 1e-9


@given(st.lists(st.floats(1.0, 30.0), min_size=40, max_size=80), SIZES)
def test_the_estimate_follows_what_is_measured(took: list[float], tokens: int) -> None:
    costs = Costs(25.0)
    costs.learn("embed", tokens, 5000.0)
    for one in took:
        costs.learn("embed", tokens, one)
    assert costs.ms("embed", tokens) <= 30.0 * 1.5


def test_an_estimate_that_only_refuses_is_doubted_until_it_lets_one_in() -> None:
    costs = Costs(25.0)
    costs.learn("embed", 100, 60_000.0)
    refusals = 0
    while costs.ms("embed", 100) > 30_000:
        costs.doubt("embed", [100])
        refusals += 1
    assert refusals == pytest.approx(7, abs=1)
    assert 0 < DOUBTED < 1


def test_what_a_size_takes_is_known_once_enough_of_it_was_measured() -> None:
    costs = Costs(25.0)
    for measured in range(ENOUGH):
        assert not costs.known("embed", [100]), measured
        costs.learn("embed", 100, 50.0)
    assert costs.known("embed", [100, 127])
    assert not costs.known("embed", [100, 128]), "the nearest size is a guess"
    assert not costs.known("rerank", [100])
    costs.learn_generation(40, 800.0)
    assert not costs.known("generate", [40])


def test_doubting_what_was_never_seen_changes_nothing() -> None:
    costs = Costs(25.0)
    costs.doubt("embed", [100])
    assert costs.ms("embed", 100) == 25.0


def test_a_generation_is_expected_to_make_what_others_made() -> None:
    costs = Costs(25.0)
    assert costs.generation_tokens(512) == 512
    costs.learn_generation(40, 800.0)
    assert costs.generation_tokens(512) == 40
    assert costs.generation_tokens(8) == 8
    assert costs.ms("generate", 40) == pytest.approx(800.0)
