"""MLX's names of the activation types we offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synapse_host.hookspecs import DType
from synapse_owned_metal.runtime import mx

MX_DTYPES: Mapping[DType, Any] = {"f32": mx.float32, "f16": mx.float16}
