"""What a command's exit status means; listed in ``docs/reference/command-line.md``."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of both command lines."""

    OK = 0
    #: The host refused; standard error names the code. Or a probed model was not certified.
    REFUSED = 1
    #: The command line, its input or the environment is wrong.
    USAGE = 2
    #: No host answers on the socket, or the connection ended.
    NO_HOST = 3
    #: The host could not start: another one runs, or its configuration or store is unusable.
    NOT_STARTED = 4
    #: Interrupted from the keyboard (128 + SIGINT), or by another signal that ends a command as that does.
    INTERRUPTED = 130
    #: Whoever read standard output went away (128 + SIGPIPE), as in a pipe into ``head``.
    OUTPUT_CLOSED = 141
