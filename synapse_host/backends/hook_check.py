"""Whether the hooks of a plugin are the hooks of the contract; pure, it only looks at functions.

Pluggy accepts in silence an undecorated ``synapse_*`` function, a generator, and an argument with a default that it
will never pass; each of them is a plugin that loads and then does not do what its author wrote. Here they are faults.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

from synapse_host.hookspecs import BackendHooks
from synapse_host.values import value_object

PREFIX = "synapse_"
DESCRIBE = "synapse_describe"
PROBE = "synapse_probe_capability"
REQUIRED_HOOKS = (DESCRIBE, PROBE)
MODEL_HOOKS = ("synapse_load", "synapse_unload")
#: Task of a description -> the hook that does it.
TASK_HOOKS = {"embed": "synapse_embed", "rerank": "synapse_rerank", "generate": "synapse_generate"}
#: The hooks of a backend whose description has ``packed``.
PACKED_HOOKS = ("synapse_admit_packed", "synapse_evict_packed")


@value_object
class Attribute:
    """One attribute of a plugin module; ``options`` is what ``hookimpl`` left on it, None without the decorator."""

    name: str
    value: Any
    options: Mapping[str, Any] | None

    @property
    def hook(self) -> str:
        """The hook it implements: its own name unless ``specname`` says another."""
        return (self.options or {}).get("specname") or self.name


def hook_arguments() -> dict[str, tuple[str, ...]]:
    """Hook name -> argument names in order, read from ``BackendHooks``."""
    return {
        name: tuple(inspect.signature(spec).parameters)[1:]
        for name, spec in vars(BackendHooks).items()
        if name.startswith(PREFIX)
    }


def attribute_faults(attributes: Iterable[Attribute]) -> list[str]:
    """Every fault of the hooks themselves, each naming the hook, what is wrong and what to write instead."""
    known = hook_arguments()
    faults: list[str] = []
    implemented: set[str] = set()
    for attribute in attributes:
        if attribute.options is None:
            faults += _undecorated(attribute)
            continue
        faults += _decorated(attribute, known)
        if attribute.hook in implemented:
            faults.append(f"{attribute.hook} is implemented twice; keep one")
        implemented.add(attribute.hook)
    return faults


def missing_required(implemented: Collection[str]) -> list[str]:
    """The hooks every plugin must have and this one has not."""
    return [f"{hook} is missing; every backend implements it" for hook in REQUIRED_HOOKS if hook not in implemented]


def task_faults(tasks: Collection[str], implemented: Collection[str]) -> list[str]:
    """Where the declared tasks and the implemented hooks disagree."""
    faults = [
        f"task {task!r} is declared but {hook} is not implemented; implement it or drop the task"
        for task in tasks
        for hook in (TASK_HOOKS[task], *MODEL_HOOKS)
        if hook not in implemented
    ]
    faults += [
        f"{hook} is implemented but task {task!r} is not declared; add it to tasks of synapse_describe"
        for task, hook in TASK_HOOKS.items()
        if hook in implemented and task not in tasks
    ]
    return faults


def packed_faults(declared: bool, implemented: Collection[str]) -> list[str]:
    """Where the packed programs of the description and the hooks that make them disagree."""
    if declared:
        missing = [hook for hook in PACKED_HOOKS if hook not in implemented]
        return [f"packed is declared but {hook} is not implemented; implement it or drop packed" for hook in missing]
    surplus = [hook for hook in PACKED_HOOKS if hook in implemented]
    return [f"{hook} is implemented but packed is not declared; add it to synapse_describe" for hook in surplus]


def _undecorated(attribute: Attribute) -> list[str]:
    # "import synapse_host" binds such a name too, and is no hook.
    if not attribute.name.startswith(PREFIX) or isinstance(attribute.value, ModuleType):
        return []
    return [f"{attribute.name} lacks the hookimpl decorator; decorate it, or rename what is no hook"]


def _decorated(attribute: Attribute, known: Mapping[str, tuple[str, ...]]) -> list[str]:
    if attribute.hook not in known:
        return [f"{attribute.hook} is no hook of the contract{_did_you_mean(attribute.hook, known)}"]
    function, options = attribute.value, attribute.options or {}
    if options.get("wrapper") or options.get("hookwrapper") or _is_generator(function):
        return [f"{attribute.hook} is a generator or a wrapper; write a plain function that returns its result"]
    if inspect.iscoroutinefunction(function):
        return [f"{attribute.hook} is asynchronous; hooks are called synchronously, write a plain function"]
    return _argument_faults(attribute.hook, function, known[attribute.hook])


def _is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _did_you_mean(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; the hooks are {', '.join(known)}"


def _argument_faults(hook: str, function: Callable[..., Any], allowed: tuple[str, ...]) -> list[str]:
    passed = ", ".join(allowed) or "no argument"
    faults: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            faults.append(f"{hook} takes {parameter}, which cannot be passed; the contract passes {passed}")
        elif parameter.name not in allowed:
            faults.append(f"{hook} takes {parameter.name!r}, which the contract does not pass; it passes {passed}")
        elif parameter.default is not inspect.Parameter.empty:
            faults.append(f"{hook} gives {parameter.name!r} a default, so it would never be passed; remove the default")
    return faults
