"""The life of one download, as a pure machine; ``runner`` carries it out.

``queued``, ``downloading``, ``verifying`` and one of three ends. A job with nothing to fetch goes from ``queued`` to
``committed`` at once. The publish fence is ``claim``: whoever claims first decides how the job ends, everybody else
waits for it, so that no two of a commit, a cancellation and a failure can both have happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from synapse_host.downloads.manifest import Manifest


class DownloadState(StrEnum):
    """Where a download is."""

    QUEUED = "queued"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = frozenset({DownloadState.COMMITTED, DownloadState.FAILED, DownloadState.CANCELLED})
#: state -> the states that may follow.
STEPS: Mapping[DownloadState, frozenset[DownloadState]] = {
    DownloadState.QUEUED: ENDS | {DownloadState.DOWNLOADING},
    DownloadState.DOWNLOADING: (ENDS - {DownloadState.COMMITTED}) | {DownloadState.VERIFYING},
    DownloadState.VERIFYING: ENDS,
    **dict.fromkeys(ENDS, frozenset()),
}
#: claimed end -> the ends its owner may come to: publishing can still fail.
_MAY_END_AS: Mapping[DownloadState, frozenset[DownloadState]] = {
    DownloadState.COMMITTED: frozenset({DownloadState.COMMITTED, DownloadState.FAILED}),
    DownloadState.FAILED: frozenset({DownloadState.FAILED}),
    DownloadState.CANCELLED: frozenset({DownloadState.CANCELLED}),
}


class StepRefused(Exception):
    """A step the machine does not have; a mistake of the caller's."""


@dataclass(slots=True)
class DownloadJob:
    """One download. Times and storage are nobody's business here."""

    job_id: str
    manifest: Manifest
    state: DownloadState = DownloadState.QUEUED
    bytes_total: int = 0
    error: Mapping[str, Any] | None = None
    claimed: DownloadState | None = None
    _received: dict[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.state in ENDS

    @property
    def bytes_done(self) -> int:
        """Bytes received of all files; less than before where a file had to begin anew."""
        return sum(self._received.values())

    def start(self, bytes_total: int) -> None:
        """Begin to fetch that many bytes."""
        self._step(DownloadState.DOWNLOADING)
        self.bytes_total = bytes_total

    def received(self, name: str, count: int) -> None:
        """``count`` bytes of the file are here."""
        self._received[name] = count

    def verify(self) -> None:
        """Everything is here."""
        self._step(DownloadState.VERIFYING)

    def claim(self, end: DownloadState) -> bool:
        """Take it on to bring the job to ``end``; False where somebody has taken it on already."""
        if end not in ENDS:
            raise StepRefused(f"{end} is no end of a download")
        if self.claimed is not None:
            return False
        self.claimed = end
        return True

    def end(self, end: DownloadState, error: Mapping[str, Any] | None = None) -> None:
        """The end, by whoever claimed it; a failure has an error and nothing else has."""
        if self.claimed is None or end not in _MAY_END_AS[self.claimed]:
            raise StepRefused(f"job {self.job_id} was claimed as {self.claimed} and cannot end as {end}")
        if (error is not None) != (end is DownloadState.FAILED):
            raise StepRefused(f"job {self.job_id} cannot end as {end} with error {error}")
        self._step(end)
        self.error = error

    def status(self) -> dict[str, Any]:
        """The flat status of the wire contract."""
        return flat_status(self.job_id, self.state, self.error, (self.bytes_done, self.bytes_total))

    def _step(self, state: DownloadState) -> None:
        if state not in STEPS[self.state]:
            raise StepRefused(f"job {self.job_id} cannot go from {self.state} to {state}")
        self.state = state


def flat_status(
    job_id: str, state: str, error: Mapping[str, Any] | None, progress: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Byte counts stand in it only while downloading, an error only on failure."""
    status: dict[str, Any] = {"job_id": job_id, "state": str(state)}
    if state == DownloadState.DOWNLOADING:
        status["bytes_done"], status["bytes_total"] = progress
    if error is not None:
        status["error"] = dict(error)
    return status
