"""The tolerances the operations' contract works with; all of them stand in ``synapse_host.tolerances``."""

from __future__ import annotations

from synapse_host.tolerances import END_TO_END, OP_UNITS, EndToEnd, op_bound

__all__ = ["END_TO_END", "OP_UNITS", "EndToEnd", "op_bound"]
