"""What a control message is, and the names of the shapes its fields take; the checks of both stand in ``field_checks``.

Stdlib only: a worker starts with this module, so it must be cheap to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, TypeAlias

from synapse_host.values import value_object

# A field is annotated with the name of its shape, and the codec finds the check by that name.
ReqId: TypeAlias = str
U32: TypeAlias = int
Share: TypeAlias = float
Phase: TypeAlias = Literal["setup", "inference", "control"]
FinishReason: TypeAlias = Literal["stop", "length"]
EngineFields: TypeAlias = Mapping[str, Any]
PackedFields: TypeAlias = Mapping[str, Any]
TextMap: TypeAlias = Mapping[str, str]
Items: TypeAlias = list[dict[str, Any]]
TokenCounts: TypeAlias = list[dict[str, int]]
Inventory: TypeAlias = Mapping[str, Any]
Checks: TypeAlias = list[dict[str, Any]]
ShapeTable: TypeAlias = Mapping[str, list[int]]
ShareTable: TypeAlias = Mapping[str, float]


@value_object
class Message:
    """One control frame. ``TYPE`` is its tag; ``RAW`` says whether exactly one raw frame follows.

    ``OPERATION`` is what a request counts as for progress and silence windows; replies have none.
    """

    TYPE: ClassVar[str] = ""
    RAW: ClassVar[bool] = False
    OPERATION: ClassVar[str] = ""

    def to_wire(self) -> dict[str, Any]:
        """The JSON object; fields that are None are left out."""
        wire: dict[str, Any] = {"type": self.TYPE} if self.TYPE else {}
        kind = type(self)
        names = _NAMES.get(kind) or _names_of(kind)
        for name in names:
            value = getattr(self, name)
            if value is not None:
                wire[name] = value
        return wire


#: Message type -> its fields, once one of it was written: to look them up takes longer than to write them.
_NAMES: dict[type[Message], tuple[str, ...]] = {}


def _names_of(kind: type[Message]) -> tuple[str, ...]:
    names = tuple(item.name for item in fields(kind))
    _NAMES[kind] = names
    return names
