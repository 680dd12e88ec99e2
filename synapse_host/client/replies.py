"""Answers of embedding methods, checked against what was sent (contract sections 6 and 7).

Every reply is checked: the ids are those that were asked for, the raw frame has the announced length, and
``submitted_sha256`` is the digest of the bytes that were sent. numpy is imported with the first vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synapse_host.client.exchange import Received
from synapse_host.client.faults import ReplyMismatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a text were submitted and how many were embedded."""

    submitted_tokens: int
    effective_tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, eq=False)
class EmbedReply:
    """Vectors and the identity of what computed them; every sequence is in the order of ``ids``.

    ``vectors`` is float32 [n, dims] and may be read-only. Keep ``fingerprint`` and ``table_epoch`` with the index:
    vectors of another fingerprint live in another space.
    """

    ids: tuple[str, ...]
    vectors: Vectors
    fingerprint: str
    table_epoch: int
    dims: int
    module_generation: int
    provenance: Mapping[str, Any]
    equivalent_to: tuple[str, ...]
    real_token_counts: tuple[int, ...]
    truncations: tuple[Truncation, ...]
    content_sha256: tuple[str, ...]
    submitted_sha256: tuple[str, ...]

    def by_id(self) -> dict[str, Vectors]:
        """Each id with its vector, float32 [dims]."""
        return dict(zip(self.ids, self.vectors, strict=True))


def read_embed_reply(method: str, received: Received, ids: Sequence[str], texts: Sequence[str]) -> EmbedReply:
    """The typed reply, in the order of ``ids``.

    Raises:
        ReplyMismatch: other items than asked for, a digest that is not of the text sent, or a field missing.

    """
    payload = received.payload
    try:
        items = payload["vectors"]
        order = _order(method, [item["id"] for item in items], ids)
        items = [items[place] for place in order]
        _check_digests(method, items, texts)
        vectors = matrix_of(received)
        in_order = order == list(range(len(ids)))
        return EmbedReply(
            ids=tuple(ids),
            vectors=vectors if in_order else vectors[order],
            fingerprint=payload["fingerprint"],
            table_epoch=payload["table_epoch"],
            dims=payload["dims"],
            module_generation=payload["module_generation"],
            provenance=payload["provenance"],
            equivalent_to=tuple(payload["equivalent_to"]),
            real_token_counts=tuple(payload["real_token_counts"][place] for place in order),
            truncations=tuple(truncation_of(payload["truncation_disclosures"][place]) for place in order),
            content_sha256=tuple(item["content_sha256"] for item in items),
            submitted_sha256=tuple(item["submitted_sha256"] for item in items),
        )
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        keys = ", ".join(payload)
        raise ReplyMismatch(f"the reply to {method} is incomplete: {fault!r}; it holds {keys}") from fault


def payload_with_vectors(received: Received) -> dict[str, Any]:
    """The payload as it would read without raw vectors: each item has its ``vector``, here a float32 row."""
    payload = received.payload
    if received.raw is not None:
        for item, row in zip(payload["vectors"], matrix_of(received), strict=True):
            item["vector"] = row
        del payload["raw"]
    return payload


def merge_replies(parts: Sequence[tuple[Sequence[int], EmbedReply]], ids: Sequence[str]) -> EmbedReply:
    """One reply of several; each part comes with the places of its rows in the whole.

    Raises:
        ReplyMismatch: the parts were computed under different fingerprints.

    """
    import numpy as np

    first = parts[0][1]
    vectors = np.empty((len(ids), first.dims), dtype=np.float32)
    places: list[int] = []
    for where, part in parts:
        if part.fingerprint != first.fingerprint:
            raise ReplyMismatch(
                f"the fingerprint changed on the way, from {first.fingerprint} to {part.fingerprint}; embed again"
            )
        vectors[list(where)] = part.vectors
        places.extend(where)
    replies = [part for _, part in parts]
    return EmbedReply(
        ids=tuple(ids),
        vectors=vectors,
        fingerprint=first.fingerprint,
        table_epoch=max(part.table_epoch for part in replies),
        dims=first.dims,
        module_generation=replies[-1].module_generation,
        provenance=first.provenance,
        equivalent_to=replies[-1].equivalent_to,
        real_token_counts=_scatter(places, [count for part in replies for count in part.real_token_counts]),
        truncations=_scatter(places, [told for part in replies for told in part.truncations]),
        content_sha256=_scatter(places, [digest for part in replies for digest in part.content_sha256]),
        submitted_sha256=_scatter(places, [digest for part in replies for digest in part.submitted_sha256]),
    )


def _scatter(places: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    by_place = dict(zip(places, values, strict=True))
    return tuple(by_place[place] for place in range(len(places)))


def _order(method: str, got: Sequence[str], wanted: Sequence[str]) -> list[int]:
    if got == list(wanted):
        return list(range(len(wanted)))
    place = {item: index for index, item in enumerate(got)}
    missing = [item for item in wanted if item not in place]
    if missing or len(got) != len(wanted):
        raise ReplyMismatch(
            f"{method} was asked for {len(wanted)} items and answered {len(got)}; missing: {missing[:3]}; ask again"
        )
    return [place[item] for item in wanted]


def _check_digests(method: str, items: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
    for item, text in zip(items, texts, strict=True):
        expected = hashlib.sha256(text.encode()).hexdigest()
        if item["submitted_sha256"] != expected:
            raise ReplyMismatch(
                f"{method} answered for item {item['id']!r} with submitted_sha256 {item['submitted_sha256']}, "
                f"but the text sent has {expected}; discard the vector and ask again"
            )


def truncation_of(told: Mapping[str, Any]) -> Truncation:
    """One disclosure, typed."""
    return Truncation(told["submitted_tokens"], told["effective_tokens"], told["truncated"])


def matrix_of(received: Received) -> Vectors:
    """The vectors of an answer, float32 [n, dims]."""
    import numpy as np

    payload = received.payload
    if received.raw is None:
        return np.array([item["vector"] for item in payload["vectors"]], dtype=np.float32)
    shape = payload["raw"]["rows"], payload["raw"]["dims"]
    return np.frombuffer(received.raw, dtype="<f4").reshape(shape)
