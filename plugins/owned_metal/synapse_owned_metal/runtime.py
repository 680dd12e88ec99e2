"""MLX, imported late. Every other module of the plugin takes it from here.

Importing this module costs about 0.1 s, so only functions that need the library do.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Read by MLX when it first computes. Products in TF32, its default on chips that have it, are none of float32, and a
# variable of the host's environment may move neither those nor the graphs of a certified lane.
os.environ["MLX_ENABLE_TF32"] = "0"
os.environ.pop("MLX_DISABLE_COMPILE", None)

#: The array module; typed as Any because its stubs differ between the releases we accept.
mx: Any = importlib.import_module("mlx.core")
