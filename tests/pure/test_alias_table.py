"""Declared equivalences: pairs, never chains, and what an index of several identities may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synapse_host.certification.alias_table import Alias, AliasTable, Mixed, pair_of

NAMES = st.sampled_from("abcdef")


def table(*live: str, ended: tuple[str, ...] = ()) -> AliasTable:
    """A pair is written as two letters."""
    rows = [Alias(pair_of(*pair), 1) for pair in live] + [Alias(pair_of(*pair), 1, 2) for pair in ended]
    return AliasTable(len(rows), rows)


def test_an_alias_holds_both_ways_and_does_not_chain() -> None:
    known = table("ab", "cb")
    assert known.equivalents("b") == ("a", "c")
    assert known.equivalents("a") == ("b",)
    assert known.equivalents("c") == ("b",)
    assert known.equivalents("z") == ()


def test_a_retracted_pair_is_none_and_stays_in_the_rows() -> None:
    known = table("ab", ended=("ac",))
    assert known.equivalents("a") == ("b",)
    assert [row.to_wire() for row in known.rows] == [
        {"fingerprint_a": "a", "fingerprint_b": "b", "valid_from_ms": 1, "evidence": {}},
        {
            "fingerprint_a": "a",
            "fingerprint_b": "c",
            "valid_from_ms": 1,
            "evidence": {},
            "valid_to_ms": 2,
            "retraction_evidence": {},
        },
    ]


def test_an_index_of_one_identity_or_of_live_aliases_is_valid() -> None:
    assert table().check_index("a", [], []) is None
    assert table().check_index("a", ["a", "a"], []) is None
    assert table("ab", "ac").check_index("a", ["a", "b", "c"], []) is None


def test_an_index_across_a_retracted_pair_has_to_be_rebuilt_for_what_is_served() -> None:
    known = table("ab", ended=("ac",))
    assert known.check_index("a", ["b", "c"], ["a"]) == Mixed(("a", "c"), "a")
    assert known.check_index("a", ["b", "c"], ["c"]) == Mixed(("a", "c"), "c")
    assert known.check_index("a", ["c"], ["z"]) == Mixed(("a", "c"), "a")


def test_aliases_of_aliases_do_not_make_an_index_valid() -> None:
    assert table("ab", "bc").check_index("a", ["c"], []) == Mixed(("a", "c"), "a")


@given(st.lists(st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] != pair[1])), NAMES, st.sets(NAMES))
def test_an_index_is_valid_exactly_when_each_member_is_a_live_alias_of_it(
    pairs: list[tuple[str, str]], index: str, members: set[str]
) -> None:
    known = AliasTable(1, [Alias(pair_of(*pair), 1) for pair in pairs])
    live = {pair_of(*pair) for pair in pairs}
    fits = all(member == index or pair_of(index, member) in live for member in members)
    assert (known.check_index(index, members, []) is None) == fits
