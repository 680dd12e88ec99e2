"""Which padded lengths of one model are compiled here, and which may be computed. Pure.

A host that admits shapes says so in LOAD (``shape_admission`` = ``explicit``); then only what it admitted is computed.
Without it a length is compiled when a row first needs it, and the one longest unused is dropped for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from synapse_host.hookspecs import PluginError

#: Shapes of one model that may be resident. Source: the limits of the direct Neural Engine lanes (original facts 1.7).
MOST_SHAPES = 4


class ShapeTable:
    """The resident lengths of one model, the one used last at the end. ``explicit``: the host alone admits."""

    def __init__(self, ladder: Sequence[int], *, explicit: bool) -> None:
        self._ladder = tuple(ladder)
        self._explicit = explicit
        self._resident: dict[int, None] = {}

    @property
    def resident(self) -> tuple[int, ...]:
        """The resident lengths, ascending."""
        return tuple(sorted(self._resident))

    def use(self, length: int) -> int | None:
        """Take note that ``length`` is about to be computed; a length to drop for it, where there is one.

        Raises:
            PluginError: shape_not_admitted, where the host admits shapes and has not admitted this one.

        """
        known = length in self._resident
        if self._explicit and not known:
            have = ", ".join(map(str, self.resident)) or "none"
            raise PluginError("shape_not_admitted", f"shape {length} is not compiled here; compiled: {have}; admit it")
        self._resident.pop(length, None)
        self._resident[length] = None
        return None if known or len(self._resident) <= MOST_SHAPES else next(iter(self._resident))

    def admit(self, length: int) -> None:
        """Make ``length`` one of the resident.

        Raises:
            PluginError: invalid_request for a length that is no rung, ane_residency_limit where four are resident.

        """
        if length not in self._ladder:
            rungs = ", ".join(map(str, self._ladder))
            raise PluginError("invalid_request", f"shape {length} is no shape of this lane; it has {rungs}")
        if length not in self._resident and len(self._resident) >= MOST_SHAPES:
            have = ", ".join(map(str, self.resident))
            raise PluginError(
                "ane_residency_limit", f"shape {length} would be one past {MOST_SHAPES}; evict one of {have} first"
            )
        self._resident[length] = None

    def drop(self, length: int) -> bool:
        """Forget ``length``; False where it is not resident."""
        return self._resident.pop(length, 0) is None
