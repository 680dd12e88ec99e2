"""A model's tokenizer, stripped of what its file says about padding and truncation.

Files are published with padding and limits of somebody's training run (MiniLM: padded to 128, cut at 128). Here a text
costs exactly its own tokens, the limit is the lane's, and a cut is disclosed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.errors import InvalidRequest
from synapse_host.identity.digests import sha256_hex
from synapse_host.tokenization.library_tokenizer import library_faults, open_tokenizer, received_bytes, refuse_file
from synapse_host.tokenization.text_prompts import NO_PROMPTS, InputType, TextPrompts
from synapse_host.tokenization.token_ids import token_ids
from synapse_host.values import value_object

#: Encoded once at load, so that a tokenizer that cannot encode is refused there: nothing, a letter, an unassigned code.
_TRIAL_TEXTS = ["", "a", "\u0378"]


@value_object
class EncodedText:
    """One text as the model will read it.

    ``ids`` are the kept tokens, special tokens included. ``submitted_tokens`` counts what the whole text would take,
    ``effective_tokens`` what was kept. ``submitted_sha256`` is over the received UTF-8 bytes; ``content_sha256``
    differs from it exactly when tokens were dropped, and is then over the decoded kept tokens, those of a prompt among
    them.
    """

    ids: list[int]
    submitted_tokens: int
    effective_tokens: int
    truncated: bool
    submitted_sha256: str
    content_sha256: str


class ModelTokenizer:
    """Texts to tokens for one model; made by ``from_json``, safe to use from several threads.

    ``sanitized_digest`` is the tokenizer's identity: SHA-256 of our canonical JSON of the file with padding and
    truncation nulled (reading 6), fractions printed as RFC 8785 prints them, integers past 2^53 - 1 read as doubles.
    ``max_tokens`` and ``special_tokens`` count tokens per text; the second are part of the first. ``prompts`` is what
    the model wants before a text.
    """

    def __init__(
        self,
        library_tokenizer: Any,
        frame: tuple[list[int], list[int]],
        max_tokens: int,
        digest: str,
        prompts: TextPrompts = NO_PROMPTS,
    ) -> None:
        self.prompts = prompts
        self._tokenizer = library_tokenizer
        self._prefix, self._suffix = frame
        self.special_tokens = len(self._prefix) + len(self._suffix)
        self.max_tokens = max_tokens
        self.sanitized_digest = digest

    @classmethod
    def from_json(
        cls,
        data: bytes,
        *,
        max_tokens: int,
        vocab_size: int,
        prompts: TextPrompts = NO_PROMPTS,
        rowless_added: bool = False,
    ) -> ModelTokenizer:
        """The tokenizer in the bytes of a tokenizer.json.

        ``max_tokens`` is the most tokens a text may keep; ``vocab_size`` the rows of the model's embedding table;
        ``rowless_added`` leaves out added tokens that have none (``open_tokenizer``).

        Raises:
            InvalidRequest: the file does not parse, cannot encode, or has ids the model has no row for (details
                ``file``), or ``max_tokens`` leaves no room beside the special tokens and a prompt (details
                ``max_tokens``).

        """
        tokenizer, digest = open_tokenizer(data, vocab_size=vocab_size, rowless_added=rowless_added)
        frame = _special_frame(tokenizer)
        _check_frame(frame, max_tokens=max_tokens, vocab_size=vocab_size)
        made = cls(tokenizer, frame, max_tokens, digest, prompts)
        _check_prompts(made)
        return made

    def encode(
        self, texts: Sequence[str], *, keep: int | None = None, input_type: InputType = "document"
    ) -> list[EncodedText]:
        """Each text's tokens, in the order given; every text is legal, the empty one included.

        What the model wants before a text of this ``input_type`` is joined to it first, as in the library the model was
        trained with, and its tokens count like the text's own; digests of what was received are over the text alone.

        ``keep`` is the most tokens of a text, special ones included, where that is less than ``max_tokens``. A text
        past the limit keeps its first tokens, whatever direction the file asked for. Text that spells an
        added token of the file, such as ``[SEP]``, becomes that token, as in the library the model was trained with.
        With a tokenizer that adds no special tokens, a text of nothing has no ids.

        Raises:
            InvalidRequest: a text holds half of a surrogate pair (details ``item_index``), or the library fails.

        """
        received = [received_bytes(index, text) for index, text in enumerate(texts)]
        prompt = self.prompts.before(input_type)
        whole = [prompt + text for text in texts] if prompt else list(texts)
        limit, counted = self.max_tokens if keep is None else keep, []
        for text, data, ids in zip(whole, received, token_ids(self._tokenizer, whole), strict=True):
            with library_faults("could not decode the kept tokens of these texts"):
                counted.append(self._counted(text, data, ids, limit))
        return counted

    def continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text that tokens ``ids`` add after those of ``before``, special tokens left out.

        Decoded together with them where that is possible: some decoders drop the blank before a first token.
        """
        with library_faults("could not decode the generated tokens"):
            lead: str = self._tokenizer.decode(list(before), skip_special_tokens=True)
            whole: str = self._tokenizer.decode([*before, *ids], skip_special_tokens=True)
            if whole.startswith(lead):
                return whole[len(lead) :]
            # The prompt ends inside a character that the first generated token completes.
            alone: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
            return alone

    def _counted(self, text: str, data: bytes, ids: list[int], limit: int) -> EncodedText:
        digest = sha256_hex(data)
        count = len(ids)
        if count <= limit:
            return EncodedText(ids, count, count, False, digest, digest)
        start = len(self._prefix)
        content = ids[start : start + limit - self.special_tokens]
        kept = [*self._prefix, *content, *self._suffix]
        return EncodedText(kept, count, len(kept), True, digest, sha256_hex(self._decoded(content, text)))

    def _decoded(self, content: list[int], text: str) -> bytes:
        """The kept tokens as text, never the whole text again.

        They can spell the whole text when the cut falls inside a character that decodes to U+FFFD, or before tokens
        that decode to nothing; a token less is then decoded, so that a cut always shows in the hash.
        """
        for end in range(len(content), 0, -1):
            decoded: str = self._tokenizer.decode(content[:end], skip_special_tokens=False)
            if decoded != text:
                return decoded.encode("utf-8")
        return b""


def _check_prompts(tokenizer: ModelTokenizer) -> None:
    """Refuse a prompt beside which no token of a text would be left."""
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        (alone,) = tokenizer.encode([""], input_type=kind)
        if tokenizer.prompts.before(kind) and alone.submitted_tokens >= tokenizer.max_tokens:
            raise InvalidRequest(
                f"the {kind} prompt takes {alone.submitted_tokens} tokens with the special ones and max_tokens is "
                f"{tokenizer.max_tokens}; shorten the prompt or raise max_tokens",
                details={"max_tokens": tokenizer.max_tokens, "prompt_tokens": alone.submitted_tokens},
            )


def _special_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens put before and after a text, found by encoding one with and without them."""
    with library_faults("cannot encode a text"):
        _, framed, _ = tokenizer.encode_batch_fast(_TRIAL_TEXTS)
        bare: list[int] = tokenizer.encode(_TRIAL_TEXTS[1], add_special_tokens=False).ids
    ids: list[int] = framed.ids
    added: list[int] = framed.special_tokens_mask
    start = added.index(0) if 0 in added else len(ids)
    end = start + len(bare)
    if ids[start:end] != bare or not all(added[end:]) or (ids and not bare):
        refuse_file(f"turns {bare} into {ids} when it adds special tokens, which does not keep the text in one piece")
    return ids[:start], ids[end:]


def _check_frame(frame: tuple[list[int], list[int]], *, max_tokens: int, vocab_size: int) -> None:
    special = [*frame[0], *frame[1]]
    if special and max(special) >= vocab_size:
        refuse_file(f"adds the special token {max(special)}, but the model's vocabulary has {vocab_size} entries")
    if max_tokens <= len(special):
        raise InvalidRequest(
            f"max_tokens is {max_tokens}, but the tokenizer adds {len(special)} special tokens to every text; "
            f"use at least {len(special) + 1}",
            details={"max_tokens": max_tokens, "special_tokens": len(special)},
        )
