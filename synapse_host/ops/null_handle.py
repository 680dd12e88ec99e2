"""A tensor handle that refuses to be looked at.

Operators, comparison, indexing, length, iteration, truth, conversion and attributes all raise ``PeekError``: whatever
a family may do with a handle of every backend, it may do with this one.
"""

from __future__ import annotations

from typing import Any, NoReturn

_ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_REFUSED_METHODS = (
    *(f"{prefix}{name}" for name in _ARITHMETIC for prefix in ("", "r", "i")),
    *("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
    *("getitem", "setitem", "len", "iter", "contains", "bool", "int", "float", "index", "array", "call"),
)


class PeekError(TypeError):
    """A family looked inside a handle."""


class NullHandle:
    """A tensor nobody can look into."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f".{name}")


def _refuse(use: str) -> NoReturn:
    raise PeekError(f"a family used {use} on a tensor handle; handles are opaque, call an operation of TensorOps")


def _refusing(use: str) -> Any:
    def method(*_: object, **__: object) -> NoReturn:
        _refuse(use)

    return method


for _name in _REFUSED_METHODS:
    setattr(NullHandle, f"__{_name}__", _refusing(f"__{_name}__"))
