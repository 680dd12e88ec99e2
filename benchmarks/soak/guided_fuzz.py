"""A fuzzer led by coverage over everything that reads bytes of a peer.

``python -m benchmarks.soak.guided_fuzz DIR -runs=N``: needs atheris, which is installed by hand where there is a wheel
of it; DIR keeps the inputs that reached something new, and the other arguments are those of libFuzzer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["synapse_host"]):
    from synapse_host.testing.fuzz.any_bytes import seeds, take


def main() -> None:
    """Write the seeds into the first folder named, then fuzz; ends the process."""
    corpus = Path(sys.argv[1])
    for place, seed in enumerate(seeds()):
        (corpus / f"seed-{place}").write_bytes(seed)
    atheris.Setup(sys.argv, take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
