"""What a mistake of the host's own becomes for whoever waits on it.

Work that runs in the background has no caller on its stack: an exception that left it would end the task group it lives
in, and with it the host. So every such task turns what it did not expect into an error for its waiters.
"""

from __future__ import annotations

import logging

from synapse_host.errors import EngineCrashed

_log = logging.getLogger(__name__)


def host_fault(doing: str, fault: Exception) -> EngineCrashed:
    """Log ``fault`` with its traceback and give the error for it: permanent, for the same request would meet it again.

    Call it while ``fault`` is being handled.
    """
    _log.error("%s failed inside the host", doing, exc_info=fault)
    return EngineCrashed(
        f"{doing} failed inside the host: {fault!r}; report it with the host's log",
        details={"reason": "host_fault"},
        error_class="permanent",
    )
