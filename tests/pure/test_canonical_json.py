"""Canonical JSON: order, escapes, numbers, and what has no canonical form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.identity.canonical_json import MAX_INTEGER, canonical_json, ecmascript_number

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | text
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-1, "-1"),
        (MAX_INTEGER, "9007199254740991"),
        ([], "[]"),
        ({}, "{}"),
        ((1, [2, {}]), "[1,[2,{}]]"),
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        ("ü€😀/\x7f", '"ü€😀/\x7f"'),
        ('"\\\b\f\n\r\t\x00\x1f', '"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f"'),
    ],
)
def test_written_form(value: Any, written: str) -> None:
    assert canonical_json(value) == written.encode()


def test_keys_are_sorted_by_utf16_code_unit_not_by_code_point() -> None:
    # U+1F600 is D83D DE00 in UTF-16 and so stands before U+FB33, though its code point is larger.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    written = json.loads(canonical_json(dict.fromkeys(keys, 0)))
    assert list(written) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (1.5, "1.5 of type float"),
        (1.0, "1.0 of type float"),
        (MAX_INTEGER + 1, "54 bits"),
        (-MAX_INTEGER - 1, "54 bits"),
        ({1: 2}, "key 1 of type int"),
        ({None: 2}, "key None"),
        ("a\ud800", r"'\ud800'"),
        ({"\udc00": 1}, r"'\udc00'"),
        (b"bytes", "type bytes"),
        ({1, 2}, "type set"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_name(value: Any, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        canonical_json({"outer": [value]})
    assert fault in str(caught.value)


@given(values)
def test_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(text, scalars))
def test_the_order_of_insertion_does_not_show(members: dict[str, Any]) -> None:
    assert canonical_json(members) == canonical_json(dict(reversed(members.items())))


@pytest.mark.parametrize(
    ("number", "written"),
    [
        # Published examples of RFC 8785, appendix B, by their IEEE 754 values.
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1.0000000000000001e23, "1.0000000000000001e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (999999999999999900000.0, "999999999999999900000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (333333333.33333325, "333333333.33333325"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.2, "1424953923781206.2"),
        (-8.25, "-8.25"),
        (100.0, "100"),
    ],
)
def test_doubles_are_printed_as_rfc_8785_does(number: float, written: str) -> None:
    assert ecmascript_number(number) == written
    assert canonical_json([number], allow_floats=True) == f"[{written}]".encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_reads_back_exactly(number: float) -> None:
    assert float(ecmascript_number(number)) == number


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_without_a_json_form_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="has no JSON form"):
        canonical_json(number, allow_floats=True)
