"""A query and documents to the sequences a reranker reads: composed here, so that a worker adds nothing.

Query and document are tokenised separately where the layout is the tokenizer's pair form; the three pieces of a chat
likewise, without special tokens. Only the document is ever cut. Within either text, what spells a special token is
text: a document can neither end its turn nor forge the separator by which the two texts are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from synapse_host.errors import InvalidRequest
from synapse_host.tokenization.library_tokenizer import library_faults, open_tokenizer, refuse_file
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.tokenization.pair_template import PairTemplate
from synapse_host.tokenization.token_ids import token_ids
from synapse_host.values import value_object

_TRIAL = "a"


@value_object
class ComposedPair:
    """One complete sequence; ``submitted_tokens`` counts it uncut, ``effective_tokens`` as it is."""

    ids: list[int]
    submitted_tokens: int
    effective_tokens: int
    truncated: bool


@value_object
class _Frame:
    """Tokens before, between and after the two texts; a chat has nothing between."""

    before: list[int]
    between: list[int]
    after: list[int]

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


class PairTokenizer:
    """Composes the pairs of one reranker; made by ``from_json``, safe to use from several threads.

    ``template`` is the one given, with the separator the tokenizer tells the two texts apart by. ``sanitized_digest``
    and ``max_tokens`` are those of ``ModelTokenizer``; the second bounds a whole sequence.
    """

    def __init__(
        self, library_tokenizer: Any, frame: _Frame, template: PairTemplate, max_tokens: int, digest: str
    ) -> None:
        self._tokenizer = library_tokenizer
        self._frame = frame
        self.template = template
        self.special_tokens = len(frame)
        self.max_tokens = max_tokens
        self.sanitized_digest = digest

    @classmethod
    def from_json(cls, data: bytes, *, template: PairTemplate, max_tokens: int, vocab_size: int) -> PairTokenizer:
        """The pair tokenizer in the bytes of a tokenizer.json.

        Raises:
            InvalidRequest: the file cannot be used (details ``file``), or ``max_tokens`` leaves no room for a token of
                either text beside the frame (details ``max_tokens``).

        """
        tokenizer, digest = open_tokenizer(data, vocab_size=vocab_size)
        if template.layout == "pair":
            frame, separator = _pair_frame(tokenizer)
            template = template.with_separator(separator)
        else:
            frame = _Frame(_plain(tokenizer, template.prefix), [], _plain(tokenizer, template.suffix))
        if max_tokens < len(frame) + 2:
            raise InvalidRequest(
                f"max_tokens is {max_tokens}, but every pair has {len(frame)} tokens beside its two texts; "
                f"use at least {len(frame) + 2}",
                details={"max_tokens": max_tokens, "special_tokens": len(frame)},
            )
        # From here on only texts of callers are encoded.
        tokenizer.encode_special_tokens = True
        return cls(tokenizer, frame, template, max_tokens, digest)

    def compose(self, query: str, documents: Sequence[str], *, limit: int | None = None) -> list[ComposedPair]:
        """One sequence for each document, in order; every text is legal, the empty one included.

        A sequence has at most ``limit`` tokens, by default ``max_tokens``.

        Raises:
            InvalidRequest: the query alone leaves no room for a document (details ``query_tokens`` and ``max_tokens``),
                a text holds half of a surrogate pair (details ``item_id``), or the library fails.

        """
        _check_text("the query", "query", query)
        for place, document in enumerate(documents):
            _check_text(f"candidate {place}", str(place), document)
        if self.template.layout == "pair":
            return self._pairs(query, documents, limit or self.max_tokens)
        return self._chats(query, documents, limit or self.max_tokens)

    def _pairs(self, query: str, documents: Sequence[str], limit: int) -> list[ComposedPair]:
        asked, *given = self._encoded([query, *documents])
        self._require_room(len(asked), limit)
        frame = self._frame
        front = [*frame.before, *asked, *frame.between]
        return [self._joined(front, document, limit) for document in given]

    def _chats(self, query: str, documents: Sequence[str], limit: int) -> list[ComposedPair]:
        head = self.template.head(query)
        (bare,) = self._encoded([head])
        self._require_room(len(bare), limit)
        bodies = self._encoded([head + document for document in documents])
        return [self._joined(self._frame.before, body, limit) for body in bodies]

    def _joined(self, front: list[int], document: list[int], limit: int) -> ComposedPair:
        """``document`` after ``front``, cut at its end; for a chat it begins with the query, which is never reached."""
        after = self._frame.after
        total = len(front) + len(document) + len(after)
        kept = document[: limit - len(front) - len(after)]
        ids = [*front, *kept, *after]
        return ComposedPair(ids, total, len(ids), len(ids) < total)

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return list(token_ids(self._tokenizer, texts, add_special_tokens=False))

    def _require_room(self, query_tokens: int, limit: int) -> None:
        needed = query_tokens + len(self._frame)
        if needed >= limit:
            raise InvalidRequest(
                f"the query takes {needed} of the {limit} tokens of a sequence and leaves none for a candidate; "
                "shorten it",
                details={"query_tokens": needed, "max_tokens": limit},
            )


#: What a lane makes token ids with: texts alone, or pairs of them.
LaneTokenizer: TypeAlias = ModelTokenizer | PairTokenizer


def _plain(tokenizer: Any, text: str) -> list[int]:
    """A piece of a template; here a special token that is spelled out is one."""
    with library_faults("cannot encode the template of a pair"):
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _pair_frame(tokenizer: Any) -> tuple[_Frame, int | None]:
    """The special tokens around two texts, found by encoding a pair, and the separator where kinds differ."""
    with library_faults("cannot encode a pair"):
        pair = tokenizer.encode(_TRIAL, _TRIAL)
        bare: list[int] = tokenizer.encode(_TRIAL, add_special_tokens=False).ids
    ids: list[int] = pair.ids
    texts = [place for place, added in enumerate(pair.special_tokens_mask) if not added]
    size = len(bare)
    starts = (texts[0], texts[size]) if size and len(texts) == 2 * size else (0, 0)
    if any(ids[start : start + size] != bare for start in starts) or starts[1] <= starts[0] + size:
        refuse_file(f"turns two texts of {bare} into {ids}, in which nothing stands between the two")
    frame = _Frame(ids[: starts[0]], ids[starts[0] + size : starts[1]], ids[starts[1] + size :])
    return frame, _separator(frame, pair.type_ids, starts[1])


def _separator(frame: _Frame, kinds: list[int], second: int) -> int | None:
    """The token after which kind 1 begins; None where all tokens are of one kind, as with XLM-RoBERTa."""
    if len(set(kinds)) == 1:
        return None
    separator = frame.between[0]
    first_of_kind_1 = second - len(frame.between) + 1
    if separator in frame.before or kinds != [0] * first_of_kind_1 + [1] * (len(kinds) - first_of_kind_1):
        refuse_file(f"gives the tokens of two texts the kinds {kinds}, which do not change after token {separator}")
    return separator


def _check_text(name: str, item_id: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} holds {error.object[error.start]!a}, half of a surrogate pair, at character {error.start}; "
            "remove it or complete the pair",
            details={"item_id": item_id},
        ) from None
