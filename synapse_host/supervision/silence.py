"""How long a worker may be silent, by operation, engine and phase. Pure; the clock is the worker's keeper's.

A plugin cannot buy time by naming a phase: only the table decides (reading 11).
"""

from __future__ import annotations

from synapse_host.values import value_object

#: Operations that compile, load or free: minutes without a word are normal.
_LONG_OPERATIONS = frozenset({"load", "admit", "evict", "unload"})
#: Engines whose inference begins with long input preparation on the host, reported as phase ``setup``.
_PREPARING_ENGINES = frozenset({"owned-cuda"})


@value_object
class SilenceWindows:
    """Seconds without completed work after which a worker is killed (worker protocol v3)."""

    long_s: float = 600.0
    inference_s: float = 120.0

    def window(self, operation: str, engine: str, phase: str = "setup") -> float:
        """The window of ``operation`` on ``engine`` in ``phase``; a request starts in ``setup``."""
        if operation in _LONG_OPERATIONS:
            return self.long_s
        if phase == "setup" and operation != "ping" and engine in _PREPARING_ENGINES:
            return self.long_s
        return self.inference_s
