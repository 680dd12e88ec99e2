"""The tolerances are what was frozen: a change of one is a change of this fixture, made on purpose."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synapse_host import tolerances

FROZEN = json.loads((Path(__file__).parents[1] / "fixtures" / "tolerances.json").read_text("utf-8"))


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def test_no_tolerance_has_moved() -> None:
    assert {
        name: plain(value) for name, value in vars(tolerances).items() if name.isupper() and name != "TYPE_CHECKING"
    } == FROZEN
