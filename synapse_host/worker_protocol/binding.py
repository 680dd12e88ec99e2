"""Which engines a HELLO must prove to be the expected package of. Pure.

The expectation is the host's own, stored with the certification row or the catalog pin, and it is chosen by the engine
the *host* means to start: a worker that calls itself by another name escapes nothing.
"""

from __future__ import annotations

#: Engines that compute with a library's own kernels or are judged by another supervisor (original facts 1.1). Whatever
#: digests their plugins report, a lane on them is never refused for one.
NEVER_BOUND = frozenset({"llama.cpp-worker", "ane-coreml-worker", "owned-metal-decode"})


def bound_expectations(
    engine: str | None, manifest_digest: str | None, kernel_revision: str | None
) -> tuple[str | None, str | None]:
    """The manifest digest and kernel revision a worker of ``engine`` must present; None where nothing is compared.

    Every engine but those in ``NEVER_BOUND`` is held to whatever is expected, a missing value being a mismatch.
    """
    return (None, None) if engine in NEVER_BOUND else (manifest_digest, kernel_revision)
