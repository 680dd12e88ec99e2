"""How a reranker wants a query and a document put together: data of the model, and part of its fingerprint.

``pair`` is the form for two texts that the model's own tokenizer.json describes: the special tokens before, between and
after them. ``chat`` is a conversation in three pieces, as the model card of Qwen3-Reranker lays it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from synapse_host.identity.canonical_json import canonical_json
from synapse_host.values import value_object

Layout = Literal["pair", "chat"]
#: What a raw score is (reading 32).
ScoreKind = Literal["logit", "probability"]

#: The body of a chat ends in the document, so that cutting the document cuts the body's end.
DOCUMENT = "{doc}"


@value_object
class PairTemplate:
    """One way to compose pairs, and what the score of a pair is.

    ``separator`` is the token after which the second text begins, where the tokenizer tells the two apart; None where
    it does not. The other fields are the texts of a ``chat``: ``body`` holds {instruction}, {query} and {doc}.
    """

    layout: Layout
    score: ScoreKind
    separator: int | None = None
    prefix: str = ""
    body: str = ""
    suffix: str = ""
    instruction: str = ""

    def with_separator(self, separator: int | None) -> PairTemplate:
        """The template with what the tokenizer says about kinds."""
        return replace(self, separator=separator)

    def head(self, query: str) -> str:
        """The body of a chat up to the document."""
        return self.body.removesuffix(DOCUMENT).format(instruction=self.instruction, query=query)

    def to_json(self) -> str:
        """Canonical JSON without the fields that say nothing; this goes into the numeric profile."""
        members = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return canonical_json(members).decode()

    @classmethod
    def from_json(cls, text: str) -> PairTemplate:
        """The template of a stored profile."""
        members: dict[str, Any] = json.loads(text)
        return cls(**members)


PAIR = PairTemplate("pair", "logit")

#: Chat layout and default instruction of the public model card of Qwen3-Reranker, byte for byte.
QWEN3_RERANKER = PairTemplate(
    layout="chat",
    score="probability",
    prefix=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    ),
    body="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {doc}",
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)

#: Families whose rerankers were trained on something else than the tokenizer's own pair form.
_TEMPLATES: Mapping[str, PairTemplate] = {"qwen3": QWEN3_RERANKER}


def template_of(family: str) -> PairTemplate:
    """The template of a family's rerankers."""
    return _TEMPLATES.get(family, PAIR)
