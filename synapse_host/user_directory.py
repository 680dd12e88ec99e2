"""The directory all hosts of a user share, whatever directories each of them was given.

It follows the password database alone: a variable of one process, such as ``SYNAPSE_HOME``, ``HOME`` or ``TMPDIR``,
must not give it a lock of its own. It is no temporary directory either: those are swept while a lock in them is held.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

#: For a user the password database does not know, as in a container.
_WITHOUT_HOME = Path("/tmp")  # noqa: S108


def user_directory() -> Path:
    """``Library/Application Support/synapse-host`` on a Mac, else ``.local/state/synapse-host``, in the user's home."""
    user = os.getuid()
    try:
        home = Path(pwd.getpwuid(user).pw_dir)
    except KeyError:
        return _WITHOUT_HOME / f"synapse-{user}"
    below = ("Library", "Application Support") if sys.platform == "darwin" else (".local", "state")
    return home.joinpath(*below, "synapse-host")
