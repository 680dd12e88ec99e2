"""A worker that breaks exactly one rule of worker protocol v3, named in ``SYNAPSE_MISBEHAVIOUR``.

A real program, so that a test meets what a broken engine does to a host: closed sockets, cut frames, exit statuses,
signals. Until it reaches its one fault it is the stub worker. ``SYNAPSE_MISBEHAVE_ON`` names the wire type of the
requests it breaks its rule on, where it is one about requests (EMBED_BATCH without it); ``SYNAPSE_GATE`` names a FIFO
for ``wait_at_gate``. Stdlib only.
"""

from __future__ import annotations

import os
import sys

from synapse_host.testing.workers.misbehaving_requests import REQUEST_FAULTS
from synapse_host.testing.workers.misbehaving_start import START_FAULTS
from synapse_host.testing.workers.stub_worker import StubWorker, launch_arguments

MISBEHAVIOURS: dict[str, type[StubWorker]] = {**START_FAULTS, **REQUEST_FAULTS}

if __name__ == "__main__":
    misbehaviour = MISBEHAVIOURS[os.environ["SYNAPSE_MISBEHAVIOUR"]]
    sys.exit(misbehaviour(*launch_arguments(sys.argv)).run())
