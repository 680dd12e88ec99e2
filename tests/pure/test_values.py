"""Value objects behave as frozen dataclasses with slots do, but for what the type checker holds."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from synapse_host.values import value_object


@value_object
class Point:
    x: int
    y: int = 0
    tags: tuple[str, ...] = field(default_factory=tuple)


def test_objects_of_the_same_fields_are_the_same_value() -> None:
    assert Point(1, 2) == Point(1, 2) != Point(1, 3)
    assert {Point(1, 2): "here"}[Point(1, 2)] == "here"


def test_a_changed_copy_leaves_the_first_as_it_was() -> None:
    first = Point(1, tags=("a",))
    assert (replace(first, y=5), first) == (Point(1, 5, ("a",)), Point(1, 0, ("a",)))


def test_there_is_room_for_the_fields_alone() -> None:
    with pytest.raises(AttributeError, match="z"):
        Point(1).z = 2  # type: ignore[attr-defined]


def test_a_value_shows_its_fields() -> None:
    assert repr(Point(1)).endswith("Point(x=1, y=0, tags=())")
