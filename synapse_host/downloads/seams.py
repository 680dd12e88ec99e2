"""What the downloads room asks of other rooms, as protocols they fulfil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from synapse_host.downloads.manifest import Manifest, WantedFile
from synapse_host.values import value_object

HolderKind = Literal["loaded", "job", "self_check", "request"]
#: kind -> the name its id has on the wire (wire contract section 2, ``model_in_use``).
_ID_FIELDS = {"loaded": "model_id", "job": "job_id", "self_check": "check_id", "request": "lease_id"}
_SHOWN = {"loaded": "loaded model", "job": "job", "self_check": "self-check", "request": "request"}
#: What the ids of downloads begin with, and of no other job.
DOWNLOAD_ID = "models-download-"


@value_object
class Holder:
    """Somebody who keeps an entry from being removed."""

    kind: HolderKind
    name: str

    def to_wire(self) -> dict[str, str]:
        """The holder as ``model_in_use`` lists it."""
        return {"kind": self.kind, _ID_FIELDS[self.kind]: self.name}

    @property
    def shown(self) -> str:
        """The holder as messages name it."""
        kind = "download" if self._is_download else _SHOWN[self.kind]
        return f"{kind} {self.name!r}"

    @property
    def remedy(self) -> str:
        """What makes it let go."""
        if self.kind == "loaded":
            return f"let it go with synapse-opctl unload {self.name}"
        if self.kind == "job":
            return f"wait, or end it with synapse-host {'models' if self._is_download else 'jobs'} cancel {self.name}"
        return "wait for it"

    @property
    def _is_download(self) -> bool:
        return self.kind == "job" and self.name.startswith(DOWNLOAD_ID)


class HolderSource(Protocol):
    """A room that can hold catalog entries: lanes (loaded, request, self_check) and durable jobs (job)."""

    def holders(self, catalog_id: str) -> Sequence[Holder]:
        """Who holds the entry right now. A plain call: nothing may change between it and the removal's first step."""
        ...


class DownloadCatalog(Protocol):
    """The catalog as downloading and removing see it."""

    async def wanted(self, catalog_id: str) -> Manifest:
        """The entry's current manifest, of the files its runnable backends need.

        Raises, in this order:
            InvalidRequest: a derived lane id; details ``model_id``, ``catalog_id``.
            UnknownModel: no such entry; details ``model_id``.
            BackendUnavailable: no backend runs here; details ``catalog_id``, ``lane_id``, ``backends``.

        """
        ...

    def require_entry(self, catalog_id: str) -> None:
        """Raise the first two of ``wanted`` where they hold."""
        ...


class JobCounts(Protocol):
    """The counters of ``admission.status`` that download jobs move too."""

    def admitted(self, jobs: int = 1) -> None:
        """Jobs were admitted."""
        ...

    def ended(self, *, completed: bool, inherited: bool = False, jobs: int = 1) -> None:
        """Jobs reached a terminal state; ``inherited`` when an earlier process had admitted them."""
        ...


class FileSource(Protocol):
    """Where files come from: ``fetcher.Fetcher``, or what a test puts in its place."""

    async def fetch(self, wanted: WantedFile, *, owner: str, on_bytes: Callable[[int], None]) -> object:
        """Bring ``wanted`` into the cache, pinned by ``owner``; raises as ``Fetcher.fetch``."""
        ...
