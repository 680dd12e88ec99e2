"""Keeps OpenVINO from reporting its use: its telemetry package is made unimportable before OpenVINO is imported.

``import openvino`` otherwise starts a thread that sends an event to an analytics host and writes a client id into the
user's home. OpenVINO carries a stub for installations without the package; this makes it take that stub.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

BLOCKED_PACKAGE = "openvino_telemetry"


class TelemetryBlock(MetaPathFinder):
    """Answers for the telemetry package that there is none."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] == BLOCKED_PACKAGE:
            raise ModuleNotFoundError(f"{fullname} is blocked: synapse-host reports to nobody", name=fullname)
        return None


def block_telemetry() -> None:
    """Put the block in front of every other finder, once.

    Raises:
        RuntimeError: the package was imported before, so it may already have reported.

    """
    if BLOCKED_PACKAGE in sys.modules:
        raise RuntimeError(f"{BLOCKED_PACKAGE} is already imported; start a fresh process and import nothing before us")
    if not any(isinstance(finder, TelemetryBlock) for finder in sys.meta_path):
        sys.meta_path.insert(0, TelemetryBlock())
