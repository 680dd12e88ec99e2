"""MLX, imported late. Every other module of the plugin takes it from here.

Importing this module costs about 0.1 s, so only functions that need the library do.
"""

from __future__ import annotations

import importlib
from typing import Any

#: The array module; typed as Any because its stubs differ between the releases we accept.
mx: Any = importlib.import_module("mlx.core")
