"""How little a source may bring before the next one is asked. Pure.

Every byte puts off the end by silence, and every attempt that brought one earns the next. A source that sends a few
bytes a minute, or a few a connection, would so be asked for as long as it likes, while the next has the whole file.
What came from it by then is lost, which is little by these very limits.

The last source has no limits of this kind: where nobody else can be asked, little is better than nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from synapse_host.values import value_object

#: Seconds over which a source is judged, from its first byte on: those that silence has too.
WINDOW_S = 60.0


@value_object
class Patience:
    """The least an attempt must bring to earn the next, and the least that must come in every ``WINDOW_S``; bytes."""

    attempt_bytes: int
    window_bytes: int


#: 64 KiB an attempt are what one round trip brings on a fast line: a connection that is cut before was no use. 256 KiB
#: a window are 4.4 kB/s, the speed of a modem: a file of 1 GB would take three days.
WITH_ANOTHER = Patience(attempt_bytes=64 * 1024, window_bytes=256 * 1024)
AS_THE_LAST = Patience(attempt_bytes=1, window_bytes=0)


@dataclass(slots=True)
class Pace:
    """What came of late."""

    patience: Patience
    since_s: float | None = None
    came: int = 0

    def is_too_slow(self, added: int, now_s: float) -> bool:
        """Whether too little came in the window that ends with these ``added`` bytes; ``now_s`` is any clock's."""
        if self.since_s is None:
            self.since_s = now_s
        self.came += added
        if now_s - self.since_s < WINDOW_S:
            return False
        came, self.since_s, self.came = self.came, now_s, 0
        return came < self.patience.window_bytes
