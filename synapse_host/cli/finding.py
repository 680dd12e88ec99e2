"""One verdict of the doctor."""

from __future__ import annotations

from dataclasses import asdict

from synapse_host.values import value_object


@value_object
class Finding:
    """One verdict: what was looked at, whether it is well, what was seen, and what to do where it is not."""

    subject: str
    ok: bool
    seen: str
    remedy: str | None = None

    def to_json(self) -> dict[str, object]:
        """The finding as a document."""
        return asdict(self)
