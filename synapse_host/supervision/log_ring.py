"""The last output of one worker, both streams together, each line tagged with the stream it came from. Pure."""

from __future__ import annotations

from collections import deque

#: Bytes of output kept per worker and attached to ``engine_crashed`` (worker protocol v3).
LOG_RING_BYTES = 8 * 1024
#: A line longer than this many bytes is kept in pieces, so that one endless line cannot hide the rest.
_LONGEST_LINE = 1024


class LogRing:
    """Keeps whole lines, dropping the oldest past ``capacity`` bytes, tags included."""

    def __init__(self, capacity: int = LOG_RING_BYTES) -> None:
        self._capacity = capacity
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._open_lines: dict[str, bytes] = {}

    def append(self, stream: str, data: bytes) -> list[bytes]:
        """Take what was read from ``stream``; the lines, or pieces of one too long, that it completed.

        A line shows in ``tail`` at the latest.
        """
        pieces: list[bytes] = []
        *complete, rest = (self._open_lines.get(stream, b"") + data).split(b"\n")
        for line in complete:
            pieces += self._keep(stream, line)
        while len(rest) > _LONGEST_LINE:
            pieces += self._keep(stream, rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        self._open_lines[stream] = rest
        return pieces

    def end(self, stream: str) -> list[bytes]:
        """The line that ``stream`` ended in without completing it, if there is one."""
        rest = self._open_lines.pop(stream, b"")
        return self._keep(stream, rest) if rest else []

    def tail(self) -> str:
        """Everything kept, unfinished lines last; at most ``capacity`` bytes of UTF-8."""
        unfinished = [_tagged(stream, line) for stream, line in self._open_lines.items() if line]
        kept = b"".join((*self._lines, *unfinished))[-self._capacity :]
        # Bytes that are no UTF-8, a character cut in two among them, become one "?" each and so never grow.
        return kept.decode(errors="replace").replace("\ufffd", "?")

    def _keep(self, stream: str, line: bytes) -> list[bytes]:
        pieces = [line[start : start + _LONGEST_LINE] for start in range(0, max(1, len(line)), _LONGEST_LINE)]
        for piece in pieces:
            tagged = _tagged(stream, piece)
            self._lines.append(tagged)
            self._size += len(tagged)
        while self._size > self._capacity:
            self._size -= len(self._lines.popleft())
        return pieces


def _tagged(stream: str, line: bytes) -> bytes:
    return b"%s: %s\n" % (stream.encode(), line.rstrip(b"\r"))
