"""The rows of one job as its pages bring them, keyed by id whatever their order (wire contract section 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.job_parts import JobPart
from synapse_host.client.replies import EmbedReply, matrix_of, truncation_of

if TYPE_CHECKING:
    from synapse_host.client.replies import Vectors


class JobRows:
    """What was read of the job of ``part``; ``cursor`` is where the next read begins."""

    def __init__(self, part: JobPart) -> None:
        self.part = part
        self._places = {item: place for place, item in enumerate(part.ids)}
        self.begin()

    def __len__(self) -> int:
        return len(self._seen)

    def begin(self) -> None:
        """Read from the beginning: another attempt may be of another fingerprint."""
        self.cursor: str | None = None
        self._seen: dict[int, tuple[Mapping[str, Any], int, Mapping[str, Any]]] = {}
        self._vectors: Vectors | None = None
        self._envelope: Mapping[str, Any] = {}

    def take(self, received: Received) -> int:
        """Take the rows of one answer of embed.result; how many there were.

        Raises:
            ReplyMismatch: a row nobody asked for, or for another text than was sent, or a field is missing.

        """
        payload = received.payload
        try:
            items: Sequence[Mapping[str, Any]] = payload["vectors"]
            self.cursor = payload.get("next_cursor")
            if items:
                self._take_rows(payload, items, matrix_of(received))
            return len(items)
        except (KeyError, TypeError, ValueError, IndexError) as fault:
            raise ReplyMismatch(
                f"the reply to embed.result is incomplete: {fault!r}; it holds {list(payload)}"
            ) from fault

    def reply(self) -> EmbedReply:
        """Everything, in the order of the part; raises ``ReplyMismatch`` while rows are missing."""
        part, envelope = self.part, self._envelope
        if len(self._seen) != len(part.ids) or self._vectors is None:
            missing = [item for place, item in enumerate(part.ids) if place not in self._seen]
            raise ReplyMismatch(f"the job is done and {len(missing)} items have no row, {missing[:3]} among them")
        rows = [self._seen[place] for place in range(len(part.ids))]
        return EmbedReply(
            ids=tuple(part.ids),
            vectors=self._vectors,
            fingerprint=envelope["fingerprint"],
            table_epoch=envelope["table_epoch"],
            dims=envelope["dims"],
            module_generation=envelope["module_generation"],
            provenance=envelope["provenance"],
            equivalent_to=tuple(envelope["equivalent_to"]),
            real_token_counts=tuple(count for _, count, _ in rows),
            truncations=tuple(truncation_of(told) for _, _, told in rows),
            content_sha256=tuple(item["content_sha256"] for item, _, _ in rows),
            submitted_sha256=tuple(item["submitted_sha256"] for item, _, _ in rows),
        )

    def _take_rows(self, payload: Mapping[str, Any], items: Sequence[Mapping[str, Any]], vectors: Vectors) -> None:
        import numpy as np

        if self._vectors is None:
            self._vectors = np.empty((len(self.part.ids), payload["dims"]), dtype=np.float32)
            self._envelope = payload
        counts, told = payload["real_token_counts"], payload["truncation_disclosures"]
        for at, item in enumerate(items):
            place = self._place(item)
            self._vectors[place] = vectors[at]
            self._seen[place] = item, counts[at], told[at]

    def _place(self, item: Mapping[str, Any]) -> int:
        place = self._places.get(item["id"])
        if place is None:
            raise ReplyMismatch(f"embed.result answered for item {item['id']!r}, which is not in the job")
        expected = hashlib.sha256(self.part.texts[place].encode()).hexdigest()
        if item["submitted_sha256"] != expected:
            raise ReplyMismatch(
                f"embed.result answered for item {item['id']!r} with submitted_sha256 {item['submitted_sha256']}, "
                f"but the text sent has {expected}; use another request_key"
            )
        return place
