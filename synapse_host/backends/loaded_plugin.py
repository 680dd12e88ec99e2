"""Import one plugin and hold it to the contract.

Only ever used inside a child process: this is where third-party code starts to run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from synapse_host.backends.description_check import DescriptionFault, check_description
from synapse_host.backends.discovery import BackendEntry, list_backends
from synapse_host.backends.hook_check import (
    DESCRIBE,
    PREFIX,
    PROBE,
    Attribute,
    attribute_faults,
    hook_arguments,
    missing_required,
    packed_faults,
    task_faults,
)
from synapse_host.hookspecs import (
    PLUGIN_API_VERSION,
    PROJECT_NAME,
    BackendDescription,
    BackendHooks,
    BackendSettings,
    PluginError,
)

Hook = Callable[..., Any]


class PluginRefused(PluginError):
    """A plugin that cannot be used; ``reason_detail`` is the fine word of its backend row."""

    def __init__(self, reason_detail: str, message: str) -> None:
        super().__init__("load_failed", message)
        self.reason_detail = reason_detail


class LoadedPlugin:
    """One registered plugin whose hooks match its description."""

    def __init__(self, name: str, description: BackendDescription, hooks: Mapping[str, Hook]) -> None:
        self.name = name
        self.description = description
        self._hooks = MappingProxyType(dict(hooks))

    @property
    def operations(self) -> frozenset[str]:
        """Names of the hooks of the worker that the plugin implements, ``synapse_embed`` among them."""
        return frozenset(self._hooks) - {DESCRIBE, PROBE}

    def hook(self, name: str) -> Hook:
        """The implementation of a hook, to be called with the contract's arguments by keyword.

        Raises:
            PluginError: ``unsupported_request``, when the plugin does not implement it.

        """
        if name not in self._hooks:
            have = ", ".join(sorted(self.operations)) or "no operation"
            raise PluginError("unsupported_request", f"backend {self.name!r} does not implement {name}; it has {have}")
        return self._hooks[name]


def load_plugin(entry_name: str, settings: BackendSettings = MappingProxyType({})) -> LoadedPlugin:
    """Import, check and register the plugin of the entry point ``entry_name``.

    Hooks that ask for the operator's ``settings`` get them without their caller's doing.

    Raises:
        PluginRefused: nothing of that name is installed, its import raised, or it breaks the plugin contract. The
            message names backend, fault and remedy.

    """
    module = _import(_entry(entry_name))
    attributes = _attributes(module)
    description = _describe(entry_name, attributes, settings)
    hooks = {attribute.hook: attribute.value for attribute in attributes if attribute.options is not None}
    faults = attribute_faults(attributes) + missing_required(hooks) + task_faults(description.tasks, hooks)
    faults += packed_faults(description.packed is not None, hooks)
    if faults:
        raise PluginRefused("hooks_invalid", _listed(entry_name, faults))
    _register(entry_name, module)
    callers = {name: _filtered(name, _with_settings(hook, settings)) for name, hook in hooks.items()}
    return LoadedPlugin(entry_name, description, callers)


def _entry(name: str) -> BackendEntry:
    entries = {entry.name: entry for entry in list_backends()}
    entry = entries.get(name)
    if entry is None:
        have = ", ".join(entries) or "none"
        raise PluginRefused("not_installed", f"no backend {name!r} is installed; installed are: {have}")
    if entry.fault is not None:
        raise PluginRefused(entry.fault.reason_detail, entry.fault.message)
    return entry


def _import(entry: BackendEntry) -> ModuleType:
    try:
        return import_module(entry.module)
    except BaseException as problem:  # a module that calls sys.exit is broken too, and says so like any other
        raise PluginRefused(
            "import_failed",
            f"importing {entry.module!r} of backend {entry.name!r} raised {type(problem).__name__}: {problem}",
        ) from problem


def _attributes(module: ModuleType) -> list[Attribute]:
    reader = pluggy.PluginManager(PROJECT_NAME)
    names = vars(module)
    found = [Attribute(name, names[name], reader.parse_hookimpl_opts(module, name)) for name in sorted(names)]
    return [attribute for attribute in found if attribute.options is not None or attribute.name.startswith(PREFIX)]


def _describe(backend: str, attributes: Sequence[Attribute], settings: BackendSettings) -> BackendDescription:
    """The checked description, asked for first: a plugin of another contract is told so before its hooks are judged."""
    description = _call_describe(backend, attributes, settings)
    if isinstance(description, BackendDescription) and description.plugin_api != PLUGIN_API_VERSION:
        raise PluginRefused(
            "plugin_api_mismatch",
            f"backend {backend!r} is written for plugin API {description.plugin_api!r} and this host speaks "
            f"{PLUGIN_API_VERSION}; install versions of both that agree",
        )
    try:
        return check_description(description, backend)
    except DescriptionFault as fault:
        raise PluginRefused("description_invalid", str(fault)) from fault


def _call_describe(backend: str, attributes: Sequence[Attribute], settings: BackendSettings) -> object:
    describe = [one for one in attributes if one.options is not None and one.hook == DESCRIBE]
    faults = attribute_faults(describe) if describe else [*attribute_faults(attributes), *missing_required([PROBE])]
    if faults:
        raise PluginRefused("hooks_invalid", _listed(backend, faults))
    try:
        return _with_settings(describe[0].value, settings)()
    except (Exception, SystemExit) as problem:
        raise PluginRefused(
            "describe_failed", f"{DESCRIBE} of backend {backend!r} raised {type(problem).__name__}: {problem}"
        ) from problem


def _register(backend: str, module: ModuleType) -> None:
    """Let pluggy validate the plugin too: what it refuses and we did not think of is refused all the same."""
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(BackendHooks)
    try:
        manager.register(module, name=backend)
        manager.check_pending()
    except pluggy.PluginValidationError as problem:
        raise PluginRefused(
            "hooks_invalid", f"backend {backend!r} has a hook that pluggy refuses: {problem}"
        ) from problem


def _with_settings(hook: Hook, settings: BackendSettings) -> Hook:
    """The hook with the operator's settings of this backend, where its author asked for them."""
    return partial(hook, settings=settings) if "settings" in inspect.signature(hook).parameters else hook


def _filtered(name: str, hook: Hook) -> Hook:
    """The hook itself, or one that drops the arguments its author did not ask for, as pluggy would."""
    wanted = frozenset(inspect.signature(hook).parameters)
    if wanted == set(hook_arguments()[name]):
        return hook

    def with_wanted_arguments(**arguments: Any) -> Any:
        return hook(**{key: value for key, value in arguments.items() if key in wanted})

    return with_wanted_arguments


def _listed(backend: str, faults: Sequence[str]) -> str:
    return f"the hooks of backend {backend!r} do not match the plugin contract: {'; '.join(faults)}"
