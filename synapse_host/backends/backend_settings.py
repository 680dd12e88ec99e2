"""What an operator set for a backend, on its way to the processes that hold the plugin: command-line pairs. Pure.

Only the host reads the environment and its file; a describe-and-probe child and a worker are told what of it concerns
their backend (reading 34).
"""

from __future__ import annotations

from collections.abc import Iterable

from synapse_host.hookspecs import BackendSettings


def setting_arguments(settings: BackendSettings) -> list[str]:
    """``settings`` as arguments of a child, by name; none where nothing was set."""
    return [part for name, value in sorted(settings.items()) for part in ("--setting", f"{name}={value}")]


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """The settings of ``NAME=VALUE`` pairs; raises ``ValueError`` naming one that is none."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign):
            raise ValueError(f"--setting {pair!r} is no NAME=VALUE; write it as the host does")
        settings[name] = value
    return settings
