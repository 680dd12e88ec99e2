"""The page of methods against the registry of a host and the parameters it accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import anyio
import pytest
from pydantic import BaseModel

from synapse_host.host import open_host
from synapse_host.operations.constraints import Constraints
from synapse_host.operations.contract_methods import ADDED_METHODS, CONTRACT_METHODS
from synapse_host.operations.registry import Method
from synapse_host.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text("utf-8")


def sections() -> dict[str, str]:
    """Heading of the second level -> its text."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def served() -> dict[str, Method]:
    """The methods of a host that is open and listens nowhere."""

    async def collect(home: str) -> dict[str, Method]:
        async with open_host(load_settings({"SYNAPSE_HOME": home, "SYNAPSE_TEST_HARDWARE_DIR": home})) as host:
            return {method.name: method for method in host.registry()}

    with TemporaryDirectory() as home:
        return anyio.run(collect, home)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(?:[a-z_]+\.)*([a-z0-9_]+)`", text)) | set(re.findall(r"[{ ,]([a-z0-9_]+)[:,}]", text))


def fields_of(model: type[BaseModel]) -> Iterator[str]:
    """Names of a model's fields and of the models within them."""
    for name, field in model.model_fields.items():
        yield name
        for inner in _models_in(field.annotation):
            yield from fields_of(inner)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def test_every_served_method_has_a_section_and_no_other_has_one() -> None:
    assert {heading for heading in sections() if "." in heading} == set(served())


def test_served_methods_are_those_of_the_contract_and_named_additions() -> None:
    assert set(served()) - set(CONTRACT_METHODS) == set(ADDED_METHODS)
    deviations = (Path(__file__).parents[2] / "docs" / "explanation" / "deliberate-deviations.md").read_text("utf-8")
    assert all(f"`{name}`" in deviations for name in ADDED_METHODS)


@pytest.mark.parametrize("name", sorted(served()))
def test_a_section_begins_with_the_kind_of_its_method(name: str) -> None:
    kind = {"query": "Query.", "mutate": "Mutation."}[served()[name].kind]
    assert sections()[name].strip().startswith(kind)


@pytest.mark.parametrize("name", sorted(served()))
def test_every_parameter_is_named_in_the_section(name: str) -> None:
    method, section = served()[name], sections()[name]
    shared = set(Constraints.model_fields) if issubclass(method.params, Constraints) else set()
    if shared:
        assert "constraints" in section
    missing = {field for field in fields_of(method.params) if field not in names_in(section)} - shared
    assert missing == set()


def test_every_constraint_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", sections()["Constraints"], flags=re.MULTILINE)
    assert set(rows) == set(Constraints.model_fields)
