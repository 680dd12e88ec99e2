"""OpenVINO, imported with its telemetry blocked. Every other module of the plugin takes it from here.

Importing this module costs about 0.1 s and 50 MB, so only functions that need the runtime do.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from synapse_owned_cpu.telemetry import block_telemetry

block_telemetry()
#: The package; typed as Any because its stubs differ between the releases we accept.
ov: Any = importlib.import_module("openvino")
#: The operation set graphs are recorded with; 13 is the first with scaled_dot_product_attention.
opset: Any = importlib.import_module("openvino.opset13")


@cache
def core() -> Any:
    """The process's one OpenVINO core."""
    return ov.Core()
