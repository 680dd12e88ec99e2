"""Durable jobs as holders of catalog entries: a job that waits or runs keeps what it is to be computed with."""

from __future__ import annotations

from collections.abc import Sequence

from synapse_host.catalog.entries import Catalog
from synapse_host.downloads.seams import Holder
from synapse_host.jobs.open_jobs import OpenJobs
from synapse_host.values import value_object


@value_object
class JobHolders:
    """Who of ``jobs`` holds an entry of ``catalog`` (wire contract section 2, ``model_in_use``)."""

    catalog: Catalog
    jobs: OpenJobs

    def holders(self, catalog_id: str) -> Sequence[Holder]:
        """Every job that has not ended on a lane of the entry, the paused ones included."""
        entry = self.catalog.entry(catalog_id)
        return [] if entry is None else [Holder("job", job_id) for job_id in self.jobs.on(entry.lane_ids)]
