"""How to switch each catalog rule off: the one place in the host that makes it, and what to put there instead.

Used by the scripts that switch rules off and by nothing that serves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from synapse_host.errors import InvalidRequest

Replacement = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Switch:
    """``target`` is a module and a dotted name in it; ``make`` turns what is there into what stands in for it."""

    target: str
    make: Replacement


def nothing(original: Any) -> Any:
    """A function that refuses nothing."""
    return lambda *args, **kwargs: None


def nothing_async(original: Any) -> Any:
    """The same to be awaited."""

    async def done(*args: Any, **kwargs: Any) -> None:
        return None

    return done


def other_refusal(original: Any) -> Any:
    """A refusal that says nothing of the rule."""
    return lambda *args, **kwargs: InvalidRequest("the rule is switched off")


def returning(value: Any) -> Replacement:
    """A function that always gives ``value``."""
    return lambda original: lambda *args, **kwargs: value


@contextmanager
def switched_off(switch: Switch) -> Iterator[None]:
    """The rule does not hold in the block."""
    owner, name = place_of(switch.target)
    original = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, switch.make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def place_of(target: str) -> tuple[Any, str]:
    """What holds the name a switch replaces, and that name."""
    module, _, dotted = target.partition(":")
    *owners, name = dotted.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    return owner, name
