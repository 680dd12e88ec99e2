"""What a model wants before a text, by what the text is for: data of the model, and part of its fingerprint.

Many embedding models were trained with a prefix or an instruction, and another one for documents than for queries: e5
with ``query: `` and ``passage: ``, bge with an instruction for queries alone, Qwen3-Embedding with a task and a query.
A text embedded without it lands elsewhere and looks as good, so whoever loads a model says it once.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from synapse_host.identity.canonical_json import canonical_json
from synapse_host.values import value_object

#: What a text is for.
InputType = Literal["query", "document"]


@value_object
class TextPrompts:
    """The text put right before a query and right before a document; empty where the model wants none."""

    query: str = ""
    document: str = ""

    def __bool__(self) -> bool:
        return bool(self.query or self.document)

    def before(self, input_type: InputType) -> str:
        """What stands before a text of this kind."""
        return self.query if input_type == "query" else self.document

    def to_json(self) -> str | None:
        """Canonical JSON without what is empty; this goes into the numeric profile. None where there is nothing."""
        members = {name: text for name, text in asdict(self).items() if text}
        return canonical_json(members).decode() if members else None

    @classmethod
    def from_json(cls, text: str | None) -> TextPrompts:
        """The prompts of a stored profile."""
        return cls(**json.loads(text)) if text else NO_PROMPTS


NO_PROMPTS = TextPrompts()
