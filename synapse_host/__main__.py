"""``python -m synapse_host``: the ``synapse-host`` command."""

from __future__ import annotations

from synapse_host.cli.user_commands import main

if __name__ == "__main__":
    main()
