"""Hypothesis strategies for the messages of the worker protocol, made from the annotations of their fields.

A message or a field that is added is covered without a word here; a new shape of field is a ``KeyError`` that asks for
its strategy and its wrong values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from hypothesis import strategies as st

from synapse_host.worker_protocol.messages import Message

_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_POSITIVE = st.integers(1, 2**64 - 1)
#: Half a surrogate pair is text too, as in a path that is not UTF-8.
_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
_NAME = st.text(min_size=1, max_size=20)

#: Shape of a field -> lawful values of it.
LAWFUL: Mapping[str, st.SearchStrategy[Any]] = {
    "str": _TEXT,
    "ReqId": st.text(min_size=1, max_size=64),
    "int": _U64,
    "U32": _U32,
    "bool": st.booleans(),
    "Share": st.floats(0, 1) | st.sampled_from([0, 1]),
    "Phase": st.sampled_from(["setup", "inference", "control"]),
    "FinishReason": st.sampled_from(["stop", "length"]),
    "list[int]": st.lists(_U64, max_size=5),
    "TextMap": st.dictionaries(_TEXT, _TEXT, max_size=3),
    "EngineFields": st.fixed_dictionaries(
        {"engine": _NAME, "version": _NAME, "build_flags": st.dictionaries(_TEXT, _TEXT, max_size=3)}
    ),
    "PackedFields": st.fixed_dictionaries(
        {"widths": st.lists(_POSITIVE, min_size=1, max_size=3), "max_rows": _POSITIVE}
    ),
    "Items": st.lists(st.fixed_dictionaries({"id": _TEXT, "n_tokens": _U64}), max_size=4),
    "TokenCounts": st.lists(st.fixed_dictionaries({"n_tokens": _U64}), max_size=4),
    "Inventory": st.fixed_dictionaries(
        {
            "executables": st.lists(
                st.fixed_dictionaries({"id": _TEXT, "layers": st.lists(_U32, max_size=3)}), max_size=3
            ),
            "cpu_stages": st.lists(_TEXT, max_size=3),
        }
    ),
    "Checks": st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["operation", "vectors", "scores"]),
                "subject": _TEXT,
                "label": _TEXT,
                "rows": _U64,
                "width": _U64,
                "scale": st.floats(0, 1e9) | st.integers(0, 9),
                "fault": _TEXT,
            }
        ),
        max_size=3,
    ),
    "ShareTable": st.dictionaries(_TEXT, st.floats(0, 1), max_size=3),
    "ShapeTable": st.dictionaries(_TEXT, st.lists(_U64, max_size=3), max_size=3),
}

_PROGRAM = {"id": "a", "layers": [0]}
_CHECK: dict[str, Any] = {
    "kind": "vectors",
    "subject": "bert",
    "label": "a",
    "rows": 2,
    "width": 3,
    "scale": 1.5,
    "fault": "",
}
#: Shape of a field -> one lawful value of it.
SAMPLES: Mapping[str, Any] = {
    "str": "ä\n\x00",
    "ReqId": "r-1",
    "int": 3,
    "U32": 4096,
    "bool": True,
    "Share": 0.5,
    "Phase": "setup",
    "FinishReason": "stop",
    "list[int]": [16, 32],
    "TextMap": {"dtype": "f32"},
    "EngineFields": {"engine": "e", "version": "1", "build_flags": {"a": "b"}},
    "PackedFields": {"widths": [256], "max_rows": 8},
    "Items": [{"id": "a", "n_tokens": 3}],
    "TokenCounts": [{"n_tokens": 3}],
    "Inventory": {"executables": [_PROGRAM], "cpu_stages": ["pool"]},
    "Checks": [_CHECK],
    "ShapeTable": {"model-1": [128, 256]},
    "ShareTable": {"model-1": 0.5},
}
#: Bytes of the raw frame behind a sampled SELF_CHECKED.
SELF_CHECKED_BYTES = 4 * _CHECK["rows"] * _CHECK["width"]
#: Shape of a field -> values that are near it and not of it. None stands for null, which is never an absent field.
UNLAWFUL: Mapping[str, tuple[Any, ...]] = {
    "str": (7, None, ["a"], {"a": "b"}, True),
    "ReqId": (7, None, "", "x" * 65, ["a"]),
    "int": (True, 3.0, "3", -1, 2**64, None, [3]),
    "U32": (False, 3.0, "3", -1, 2**32, None),
    "bool": (1, 0, "true", None),
    "Share": ("0.5", True, -0.01, 1.01, 10**400, None, [0.5]),
    "Phase": ("waiting", "Setup", "", None, 1),
    "FinishReason": ("exhausted", "STOP", None, 0),
    "list[int]": ([1, True], [-1], [1.0], "12", None, {"0": 1}, [[1]]),
    "TextMap": ({"dtype": 1}, {"dtype": None}, [], "a", None),
    "EngineFields": (
        {"engine": "e", "version": "1"},
        {"engine": "", "version": "1", "build_flags": {}},
        {"engine": "e", "version": 1, "build_flags": {}},
        {"engine": "e", "version": "1", "build_flags": {"a": 1}},
        {"engine": "e", "version": "1", "build_flags": {}, "revision": "2"},
        [],
    ),
    "PackedFields": (
        {"widths": [256]},
        {"widths": [], "max_rows": 8},
        {"widths": [0], "max_rows": 8},
        {"widths": [256], "max_rows": 0},
        {"widths": 256, "max_rows": 8},
        {"widths": [256], "max_rows": 8, "depth": 1},
    ),
    "Items": (
        [{"id": "a", "n_tokens": "3"}],
        [{"id": "a", "n_tokens": True}],
        [{"id": 1, "n_tokens": 3}],
        [{"id": "a"}],
        [{"id": "a", "n_tokens": 3, "text": "a"}],
        [["a", 3]],
        {"id": "a", "n_tokens": 3},
        None,
    ),
    "TokenCounts": ([{"n_tokens": -1}], [{"n_tokens": 1, "id": "a"}], [{}], [3], {"n_tokens": 3}, None),
    "Inventory": (
        {"executables": []},
        {"executables": [], "cpu_stages": [], "gpu_stages": []},
        {"executables": [{"id": "a"}], "cpu_stages": []},
        {"executables": [_PROGRAM | {"layers": [2**32]}], "cpu_stages": []},
        {"executables": [_PROGRAM | {"layers": [True]}], "cpu_stages": []},
        {"executables": [_PROGRAM | {"id": 7}], "cpu_stages": []},
        {"executables": _PROGRAM, "cpu_stages": []},
        {"executables": [_PROGRAM], "cpu_stages": [7]},
        {"executables": [_PROGRAM], "cpu_stages": "pool"},
        [],
    ),
    "Checks": (
        [{name: value for name, value in _CHECK.items() if name != "fault"}],
        [_CHECK | {"share": 1}],
        [_CHECK | {"kind": "texts"}],
        [_CHECK | {"rows": -1}],
        [_CHECK | {"width": 1.0}],
        [_CHECK | {"scale": -0.5}],
        [_CHECK | {"scale": 10**400}],
        [_CHECK | {"scale": True}],
        [_CHECK | {"fault": None}],
        _CHECK,
        None,
    ),
    "ShareTable": ({"m": 1.5}, {"m": "0.5"}, {"m": True}, [], None),
    "ShapeTable": ({"m": 128}, {"m": ["128"]}, {"m": [True]}, [], None),
}


def shape_of(kind: type[Message], field: str) -> str:
    """The name of the shape of one field."""
    (found,) = (item for item in fields(kind) if item.name == field)
    return str(found.type).removesuffix(" | None")


def sample_of(kind: type[Message]) -> Message:
    """A lawful message of ``kind`` with every field in it."""
    return kind(**{item.name: SAMPLES[shape_of(kind, item.name)] for item in fields(kind)})


def messages_of(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Lawful messages of ``kind``, with and without each field that may be left out."""
    given = {}
    for item in fields(kind):
        values = LAWFUL[shape_of(kind, item.name)]
        required = item.default is MISSING and item.default_factory is MISSING
        given[item.name] = values if required or item.default is not None else st.none() | values
    return st.builds(kind, **given)
