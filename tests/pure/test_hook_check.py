from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import synapse_host
from synapse_host.backends.hook_check import (
    Attribute,
    attribute_faults,
    hook_arguments,
    missing_required,
    packed_faults,
    task_faults,
)

PLAIN: dict[str, Any] = {"wrapper": False, "hookwrapper": False, "specname": None}


def decorated(name: str, function: Callable[..., Any], **options: Any) -> Attribute:
    return Attribute(name, function, {**PLAIN, **options})


def generator(model: Any) -> Any:
    yield model


async def coroutine(model: Any) -> Any:
    return model


def test_arguments_of_a_hook_are_those_of_its_specification() -> None:
    assert hook_arguments()["synapse_embed"] == ("model", "batch", "progress")
    assert hook_arguments()["synapse_describe"] == ("settings",)


def test_a_hook_with_all_arguments_in_any_order_has_no_fault() -> None:
    assert attribute_faults([decorated("synapse_embed", lambda batch, model, progress: None)]) == []


def test_a_hook_may_leave_out_arguments_it_does_not_need() -> None:
    assert attribute_faults([decorated("synapse_embed", lambda batch: None)]) == []


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        (Attribute("synapse_embed", lambda: None, None), ["synapse_embed", "hookimpl"]),
        (Attribute("synapse_version", "1.0", None), ["synapse_version", "rename"]),
        (decorated("synapse_unload", generator), ["synapse_unload", "generator"]),
        (decorated("synapse_unload", lambda model: None, wrapper=True), ["synapse_unload", "wrapper"]),
        (decorated("synapse_unload", coroutine), ["synapse_unload", "asynchronous"]),
        (decorated("synapse_embd", lambda: None), ["synapse_embd", "did you mean synapse_embed?"]),
        (decorated("anything", lambda: None), ["anything", "the hooks are synapse_describe"]),
        (decorated("synapse_unload", lambda modle: None), ["'modle'", "it passes model"]),
        (decorated("synapse_unload", lambda model=None: None), ["'model'", "remove the default"]),
        (decorated("synapse_unload", lambda **rest: None), ["**rest", "the contract passes model"]),
        (decorated("synapse_unload", lambda *, model: None), ["synapse_unload takes model"]),
        (decorated("synapse_describe", lambda model: None), ["'model'", "it passes settings"]),
    ],
)
def test_a_faulty_hook_is_named_with_its_remedy(attribute: Attribute, wanted: list[str]) -> None:
    (fault,) = attribute_faults([attribute])
    assert [word for word in wanted if word not in fault] == []


def test_a_module_whose_name_begins_like_a_hook_is_no_hook() -> None:
    assert attribute_faults([Attribute("synapse_host", synapse_host, None)]) == []


def test_two_implementations_of_one_hook_are_a_fault() -> None:
    first = decorated("synapse_unload", lambda model: None)
    second = decorated("free", lambda model: None, specname="synapse_unload")
    assert attribute_faults([first, second]) == ["synapse_unload is implemented twice; keep one"]


def test_required_hooks_are_named_when_missing() -> None:
    (fault,) = missing_required({"synapse_describe"})
    assert "synapse_probe_capability" in fault


def test_a_task_without_its_hooks_is_a_fault_for_each_hook() -> None:
    faults = task_faults(("embed",), {"synapse_load"})
    assert [fault.split(" but ")[1].split()[0] for fault in faults] == ["synapse_embed", "synapse_unload"]


def test_a_hook_of_an_undeclared_task_is_a_fault() -> None:
    hooks = {"synapse_embed", "synapse_load", "synapse_unload", "synapse_rerank"}
    (fault,) = task_faults(("embed",), hooks)
    assert "synapse_rerank" in fault
    assert "'rerank'" in fault


def test_hooks_that_match_their_tasks_have_no_fault() -> None:
    assert task_faults(("embed",), {"synapse_embed", "synapse_load", "synapse_unload", "synapse_self_check"}) == []


@pytest.mark.parametrize(
    ("declared", "implemented", "named"),
    [
        (False, (), []),
        (True, ("synapse_admit_packed", "synapse_evict_packed"), []),
        (True, ("synapse_admit_packed",), ["synapse_evict_packed"]),
        (True, ("synapse_admit_shape",), ["synapse_admit_packed", "synapse_evict_packed"]),
        (False, ("synapse_evict_packed",), ["synapse_evict_packed"]),
    ],
)
def test_packed_programs_are_declared_and_implemented_together(
    declared: bool, implemented: tuple[str, ...], named: list[str]
) -> None:
    faults = packed_faults(declared, implemented)
    assert len(faults) == len(named)
    assert all(hook in fault for hook, fault in zip(named, faults, strict=True))
